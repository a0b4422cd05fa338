// FlagTable parses the flags of one sub-command. Abseil's flags cannot be used, since all
// sub-commands would share them. Names may be written with dashes or underscores, values as --flag
// value or --flag=value.
//
// Thread safety: one caller at a time.
#ifndef QUIRE_DEPLOY_CLI_FLAG_TABLE_H_
#define QUIRE_DEPLOY_CLI_FLAG_TABLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace quire {

class FlagTable {
 public:
  // Each method from Text to Switch registers one flag. `name`: the flag's name, written with
  // dashes. Parse calls `set` with the value each time the flag is given.
  void Text(const std::string& name, std::function<void(const std::string&)> set);
  // Takes UTF-8 only, as JSON needs.
  void Utf8Text(const std::string& name, std::function<void(const std::string&)> set);
  void Int32(const std::string& name, std::function<void(int32_t)> set);
  void Int64(const std::string& name, std::function<void(int64_t)> set);
  void Uint64(const std::string& name, std::function<void(uint64_t)> set);
  // Float and Double take finite numbers.
  void Float(const std::string& name, std::function<void(float)> set);
  void Double(const std::string& name, std::function<void(double)> set);
  void DoubleOrInf(const std::string& name, std::function<void(double)> set);  // also takes "inf"
  // Takes "1,2,3"; calls `add` for each number.
  void Int32List(const std::string& name, std::function<void(int32_t)> add);
  void Switch(const std::string& name, std::function<void()> set);

  // Errors: kInvalidArgument for an unknown flag, a missing value, or a value of the wrong kind.
  absl::Status Parse(const std::vector<std::string>& args) const;

 private:
  using Setter = std::function<absl::Status(const std::string&)>;

  std::map<std::string, Setter> values_;
  std::map<std::string, std::function<void()>> switches_;
};

}  // namespace quire

#endif  // QUIRE_DEPLOY_CLI_FLAG_TABLE_H_
