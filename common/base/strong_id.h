// StrongId<Tag, Rep> is an id that can be compared, ordered and hashed. It has no arithmetic and
// does not convert to an id with another Tag.
//
// Thread safety: a value type.
#ifndef QUIRE_COMMON_BASE_STRONG_ID_H_
#define QUIRE_COMMON_BASE_STRONG_ID_H_

#include <compare>
#include <functional>
#include <utility>

namespace quire {

template <typename Tag, typename Rep>
class StrongId {
 public:
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}

  constexpr Rep value() const { return value_; }

  friend constexpr auto operator<=>(StrongId, StrongId) = default;  // NOLINT(modernize-use-nullptr)

  template <typename H>
  friend H AbslHashValue(H state, StrongId id) {
    return H::combine(std::move(state), id.value_);
  }

 private:
  Rep value_{};
};

}  // namespace quire

template <typename Tag, typename Rep>
struct std::hash<quire::StrongId<Tag, Rep>> {
  size_t operator()(quire::StrongId<Tag, Rep> id) const { return std::hash<Rep>()(id.value()); }
};

#endif  // QUIRE_COMMON_BASE_STRONG_ID_H_
