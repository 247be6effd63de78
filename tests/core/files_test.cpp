#include "core/files.h"

#include "core/error.h"
#include "tests/support/temp_folder.h"

#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

using namespace mmt;
namespace fs = std::filesystem;
using Catch::Contains;

namespace {

std::int64_t entries_of(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

}  // namespace

TEST_CASE("files are read whole up to the limit") {
  const test::TempFolder folder;
  const std::string content = std::string("a\0b\n", 4) + std::string(5000, 'x');
  std::ofstream(folder / "f", std::ios::binary) << content;
  REQUIRE(files::read(folder / "f", content.size()) == content);
  REQUIRE_THROWS_WITH(files::read(folder / "f", content.size() - 1),
                      Contains("f: is larger than the limit of 5003 bytes"));
  REQUIRE_FALSE(files::read("/proc/self/status", 1 << 20).empty());
  REQUIRE_THROWS_WITH(files::read("/proc/self/status", 10), Contains("larger than the limit"));
  REQUIRE_THROWS_WITH(files::read(folder / "none", 10), Contains("none: cannot open: No such file or directory"));
  REQUIRE_THROWS_WITH(files::read(folder.path(), 10), Contains("is a folder"));
  REQUIRE_THROWS_WITH(files::read("/dev/zero", 10), Contains("is not a regular file"));
  // A pipe without a writer does not hang.
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  REQUIRE_THROWS_WITH(files::read(folder / "pipe", 10), Contains("is not a regular file"));
}

TEST_CASE("an atomic write leaves the old or the new content and nothing else") {
  const test::TempFolder folder;
  const std::string path = folder / "f";
  files::write_atomic(path, "one");
  REQUIRE(files::read(path, 100) == "one");
  fs::permissions(path, fs::perms(0640));
  files::write_atomic(path, std::string(100000, 'z'));
  REQUIRE(files::read(path, 1 << 20).size() == 100000);
  REQUIRE(fs::status(path).permissions() == fs::perms(0640));
  REQUIRE(entries_of(folder.path()) == 1);
  // A link stays a link.
  fs::create_symlink("f", folder / "link");
  files::write_atomic(folder / "link", "two");
  REQUIRE(fs::is_symlink(folder / "link"));
  REQUIRE(files::read(path, 100) == "two");
  REQUIRE_THROWS_AS(files::write_atomic(folder.path(), "x"), Error);
  REQUIRE_THROWS_WITH(files::write_atomic(folder / "no/f", "x"), Contains("no/f") && Contains("cannot create"));
  // A full disk.
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  std::string message;
  try {
    files::write_atomic(path, std::string(5000, 'y'));
  } catch (const Error& e) {
    message = e.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  REQUIRE_THAT(message, Contains("cannot write: File too large"));
  REQUIRE(files::read(path, 100) == "two");
  REQUIRE(entries_of(folder.path()) == 2);
}

TEST_CASE("a reader beside many atomic writes never sees a torn file") {
  const test::TempFolder folder;
  const std::string path = folder / "f";
  files::write_atomic(path, std::string(4000, 'a'));
  std::thread writer([&] {
    for (int i = 0; i < 10; ++i) files::write_atomic(path, std::string(4000, static_cast<char>('b' + i)));
  });
  for (int i = 0; i < 200; ++i) {
    const std::string content = files::read(path, 10000);
    REQUIRE(content.size() == 4000);
    REQUIRE(content.find_first_not_of(content[0]) == std::string::npos);
  }
  writer.join();
}

TEST_CASE("paths of data files stay below their root") {
  const test::TempFolder folder;
  fs::create_directories(folder / "root/sub");
  fs::create_directories(folder / "outside");
  std::ofstream(folder / "root/sub/a.jpg") << "x";
  std::ofstream(folder / "outside/secret") << "x";
  fs::create_directory_symlink(folder / "outside", folder / "root/out");
  fs::create_directory_symlink("sub", folder / "root/in");
  fs::create_symlink(folder / "outside/secret", folder / "root/file_link");
  fs::create_symlink("loop", folder / "root/loop");
  const std::string root = folder / "root";
  REQUIRE(files::join_inside(root, "sub/a.jpg") == root + "/sub/a.jpg");
  REQUIRE(files::join_inside(root, "./sub//a.jpg") == root + "/sub/a.jpg");
  REQUIRE(files::join_inside(root, "in/a.jpg") == root + "/in/a.jpg");
  REQUIRE(files::join_inside(root, "sub/none.jpg") == root + "/sub/none.jpg");
  REQUIRE(files::join_inside(root, "..a/b..") == root + "/..a/b..");
  REQUIRE_THROWS_WITH(files::join_inside(root, "../outside/secret"), Contains("leads upwards"));
  REQUIRE_THROWS_WITH(files::join_inside(root, "sub/../../outside/secret"), Contains("leads upwards"));
  REQUIRE_THROWS_WITH(files::join_inside(root, "sub/.."), Contains("leads upwards"));
  REQUIRE_THROWS_WITH(files::join_inside(root, "/etc/passwd"), Contains("is absolute"));
  REQUIRE_THROWS_WITH(files::join_inside(root, ""), Contains("is empty"));
  REQUIRE_THROWS_WITH(files::join_inside(root, std::string("a\0b", 3)), Contains("NUL"));
  REQUIRE_THROWS_WITH(files::join_inside(root, "out/secret"), Contains("symbolic link leads out"));
  REQUIRE_THROWS_WITH(files::join_inside(root, "out/none/deeper"), Contains("symbolic link leads out"));
  REQUIRE_THROWS_WITH(files::join_inside(root, "file_link"), Contains("symbolic link leads out"));
  REQUIRE_THROWS_AS(files::join_inside(root, "loop/x"), Error);
  REQUIRE_THROWS_AS(files::join_inside(root, std::string(5000, 'a')), Error);
  fs::create_symlink(folder / "outside/later", folder / "root/dangling");
  REQUIRE_THROWS_WITH(files::join_inside(root, "dangling"), Contains("leads nowhere"));
  REQUIRE_THROWS_WITH(files::join_inside(root, "dangling/x"), Contains("leads nowhere"));
  // A root beside another whose name it begins.
  fs::create_directories(folder / "rootkit");
  fs::create_directory_symlink(folder / "rootkit", folder / "root/kit");
  REQUIRE_THROWS_WITH(files::join_inside(root, "kit/x"), Contains("symbolic link leads out"));
  // The root itself may be a link, and "/" is a root too.
  fs::create_directory_symlink(folder / "root", folder / "alias");
  REQUIRE_NOTHROW(files::join_inside(folder / "alias", "sub/a.jpg"));
  REQUIRE_NOTHROW(files::join_inside("/", "etc"));
}

TEST_CASE("free space is that of the file system that will hold the path") {
  const test::TempFolder folder;
  const files::Space here = files::space(folder.path());
  REQUIRE(here.total > 0);
  REQUIRE(here.available <= here.total);
  REQUIRE_FALSE(here.filesystem.empty());
  REQUIRE(files::space(folder / "not/yet/there").total == here.total);
  REQUIRE(files::space("").total > 0);
  if (fs::exists("/dev/shm")) REQUIRE(files::space("/dev/shm").filesystem == "tmpfs");
}
