#include "core/data/records/record.h"

#include <fmt/format.h>

#include "core/error.h"

namespace mmt::data {

std::string_view name_of(Modality modality) {
  constexpr std::string_view names[] = {"image", "audio", "video"};
  return names[static_cast<int>(modality)];
}

std::string_view name_of(Role role) {
  constexpr std::string_view names[] = {"system", "user", "assistant", "tool"};
  return names[static_cast<int>(role)];
}

std::string with_id(const std::string& place, const std::string& id) {
  return id.empty() ? place : fmt::format("{} (id {})", place, id.substr(0, 80));
}

std::filesystem::path media_path(const std::filesystem::path& root, std::string_view relative,
                                 const std::string& where) {
  const auto refuse = [&](const char* why) -> void {
    const std::string_view shown = relative.substr(0, 120);  // a data URI may be megabytes
    throw DataError(DataFault::unsafe_path, where,
                    fmt::format("media path {:?}{} {}; paths are relative to the set's media_root and stay inside it",
                                shown, shown.size() < relative.size() ? "..." : "", why));
  };
  if (relative.empty()) refuse("is empty");
  if (relative.find('\0') != std::string_view::npos) refuse("holds a NUL byte");
  if (relative.starts_with("data:") || relative.find("://") != std::string_view::npos) refuse("is a URL or data URI");
  const std::filesystem::path path(relative);
  if (path.is_absolute()) refuse("is absolute");
  for (const auto& part : path) {
    if (part == "..") refuse("goes up");
  }
  return root / path;
}

void find_media(Record& record, const FindMedium& find, const std::string& where) {
  const auto source_of = [&](std::string& path) {
    if (!is_data_uri(path)) return find(path);
    MediaSource source = data_uri_source(path, where);
    path = source.name();  // megabytes
    return source;
  };
  for (MediaFile& file : record.media) {
    if (file.frames.empty()) {
      file.source = source_of(file.path);
      continue;
    }
    std::vector<MediaSource> pictures;
    for (std::string& frame : file.frames) pictures.push_back(source_of(frame));
    const std::string name = fmt::format("{} and {} more frames", file.frames.front(), pictures.size() - 1);
    file.source = MediaSource::list(std::move(pictures), name);
  }
}

void find_media(Record& record, const std::filesystem::path& root, const std::string& where) {
  find_media(
      record, [&](const std::string& path) { return MediaSource(media_path(root, path, where)); }, where);
}

}  // namespace mmt::data
