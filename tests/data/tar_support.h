// Tar shards for tests, written without the library that reads them.
#pragma once

#include <array>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

namespace mmt::data {

/// One member in the ustar format: a header of 512 bytes and the content, padded. `type`: '0' a file, '5' a folder, ...
inline std::string tar_member(const std::string& name, const std::string& content, char type = '0') {
  std::string header(512, '\0');
  const auto put = [&](std::size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  const auto octal = [](std::size_t value, int digits) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%0*zo", digits, value);
    return std::string(text.data());
  };
  put(0, name.substr(0, 100));
  put(100, octal(0644, 7));
  put(108, octal(0, 7));
  put(116, octal(0, 7));
  put(124, octal(content.size(), 11));
  put(136, octal(0, 11));
  put(148, "        ");
  header[156] = type;
  put(257, std::string("ustar\00000", 8));
  std::size_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, octal(sum, 6) + '\0' + ' ');
  std::string member = header + content;
  member.resize((member.size() + 511) / 512 * 512, '\0');
  return member;
}

using TarMembers = std::vector<std::pair<std::string, std::string>>;

inline std::string tar_of(const TarMembers& members) {
  std::string tar;
  for (const auto& [name, content] : members) tar += tar_member(name, content);
  return tar + std::string(1024, '\0');
}

}  // namespace mmt::data
