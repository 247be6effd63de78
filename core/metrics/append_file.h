// A file that only grows, whose failures are logged and outlived.
#pragma once

#include <string>
#include <string_view>

namespace mmt {

class AppendFile {
 public:
  /// Throws mmt::Error when it cannot be opened.
  explicit AppendFile(std::string path);
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  ~AppendFile();

  /// Everything or nothing: what a failed write left behind is cut off again. Returns whether it was written.
  bool append(std::string_view bytes);

 private:
  std::string path_;
  int fd_ = -1;
  bool failing_ = false;
};

}  // namespace mmt
