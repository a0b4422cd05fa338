#include "scheduler/sim/paper_figures.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quire {
namespace {

struct Entry {
  const char* name;
  absl::StatusOr<Figure> (*make)(const FigureOptions&);
};

constexpr Entry kEntries[] = {{"table1", MakeTable1},
                              {"fig2", MakeFig2},
                              {"fig12", MakeFig12},
                              {"fig13", MakeFig13},
                              {"fig14", MakeFig14},
                              {"fig15", MakeFig15},
                              {"fig16", MakeFig16},
                              {"fig17", MakeFig17},
                              {"fig18b", MakeFig18},
                              {"fig19", MakeFig19},
                              {"preemption", MakePreemption},
                              {"vattention", MakeVattention}};

}  // namespace

const std::vector<std::string>& FigureNames() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Entry& entry : kEntries) {
      all.emplace_back(entry.name);
    }
    return all;
  }();
  return names;
}

absl::StatusOr<Figure> MakeFigure(std::string_view name, const FigureOptions& options) {
  for (const Entry& entry : kEntries) {
    if (name == entry.name) {
      return entry.make(options);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("figure ",
                                                 std::string(name),
                                                 " is unknown; known figures: ",
                                                 absl::StrJoin(FigureNames(), ", ")));
}

}  // namespace quire
