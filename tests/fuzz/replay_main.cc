// Feeds every file of the folders in its arguments to LLVMFuzzerTestOneInput, as an ordinary test
// of any build. The files are earlier findings and the seeds of fuzzing. A missing folder is empty.
// It is an error if there is no file at all, or if a seed is not accepted as its name says.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz_verdict.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// See fuzz_verdict.h.
static bool IsAsNamed(const std::string& name) {
  return quire::is_accepted ? !name.ends_with("_past_bound") : !name.ends_with("_at_bound");
}

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> files;
  for (int i = 1; i < argc; ++i) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(argv[i], error)) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  bool are_as_named = true;
  for (const std::filesystem::path& path : files) {
    std::printf("%s\n", path.c_str());
    std::fflush(stdout);  // the last line names the file that a crash is of
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    quire::is_accepted = false;
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    if (!IsAsNamed(path.filename().string())) {
      std::printf("  %s, not as its name says\n", quire::is_accepted ? "accepted" : "refused");
      are_as_named = false;
    }
  }
  return files.empty() || !are_as_named ? 1 : 0;
}
