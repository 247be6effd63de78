// The file driver through which we write. The library does not survive a failed write: after a full disk its close
// fails half-way and leaves handles to freed memory behind. This driver keeps the first error for us, tells the library
// that all went well and drops what follows; every operation of ours then looks at the error.
#include "core/hdf5/impl.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <new>

namespace mmt::h5 {
namespace {

struct DriverFile {
  H5FD_t base;  // first: the library sees this part
  WriteState* state;
  int fd;
  dev_t device;
  ino_t inode;
  haddr_t eoa;
  haddr_t eof;
};

// Set by `create_file` around the library's call, under the lock.
WriteState* opening = nullptr;

DriverFile& self(H5FD_t* file) { return *reinterpret_cast<DriverFile*>(file); }
const DriverFile& self(const H5FD_t* file) { return *reinterpret_cast<const DriverFile*>(file); }

void keep_error(DriverFile& file) {
  if (file.state->error == 0) file.state->error = errno;
}

H5FD_t* open_file(const char* name, unsigned, hid_t, haddr_t) {
  if (opening == nullptr) return nullptr;
  const int fd = ::open(name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  struct stat info {};
  auto* file = fd >= 0 && ::fstat(fd, &info) == 0 ? new (std::nothrow) DriverFile{} : nullptr;
  if (file == nullptr) {
    opening->error = errno;
    if (fd >= 0) ::close(fd);
    return nullptr;
  }
  file->state = opening;
  file->fd = fd;
  file->device = info.st_dev;
  file->inode = info.st_ino;
  return &file->base;
}

herr_t close_file(H5FD_t* f) {
  DriverFile& file = self(f);
  // Some file systems report a failed write (quota, NFS) here first.
  if (::close(file.fd) != 0) keep_error(file);
  delete &file;
  return 0;
}

int compare(const H5FD_t* a, const H5FD_t* b) {
  const auto key = [](const H5FD_t* f) { return std::pair(self(f).device, self(f).inode); };
  return key(a) < key(b) ? -1 : key(b) < key(a) ? 1 : 0;
}

herr_t query(const H5FD_t*, unsigned long* flags) {
  if (flags == nullptr) return 0;
  *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
           H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
  return 0;
}

haddr_t get_eoa(const H5FD_t* f, H5FD_mem_t) { return self(f).eoa; }
herr_t set_eoa(H5FD_t* f, H5FD_mem_t, haddr_t address) {
  self(f).eoa = address;
  return 0;
}
haddr_t get_eof(const H5FD_t* f, H5FD_mem_t) { return self(f).eof; }

herr_t get_handle(H5FD_t* f, hid_t, void** handle) {
  *handle = &self(f).fd;
  return 0;
}

herr_t read(H5FD_t* f, H5FD_mem_t, hid_t, haddr_t address, std::size_t size, void* buffer) {
  DriverFile& file = self(f);
  auto* out = static_cast<char*>(buffer);
  while (size > 0) {
    const ssize_t n = ::pread(file.fd, out, size, static_cast<off_t>(address));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) keep_error(file);
    if (n <= 0) break;
    out += n;
    address += static_cast<haddr_t>(n);
    size -= static_cast<std::size_t>(n);
  }
  std::memset(out, 0, size);  // beyond the end
  return 0;
}

herr_t write(H5FD_t* f, H5FD_mem_t, hid_t, haddr_t address, std::size_t size, const void* buffer) {
  DriverFile& file = self(f);
  const auto* in = static_cast<const char*>(buffer);
  while (size > 0 && file.state->error == 0) {
    const ssize_t n = ::pwrite(file.fd, in, size, static_cast<off_t>(address));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      keep_error(file);
      break;
    }
    in += n;
    address += static_cast<haddr_t>(n);
    size -= static_cast<std::size_t>(n);
  }
  file.eof = std::max(file.eof, address + size);
  return 0;
}

herr_t truncate(H5FD_t* f, hid_t, hbool_t) {
  DriverFile& file = self(f);
  if (file.eof == file.eoa) return 0;
  if (file.state->error == 0 && ::ftruncate(file.fd, static_cast<off_t>(file.eoa)) != 0) keep_error(file);
  file.eof = file.eoa;
  return 0;
}

hid_t register_driver() {
  static H5FD_class_t driver = [] {
    H5FD_class_t d{};
    d.name = "mmtrain";
    d.maxaddr = static_cast<haddr_t>(std::numeric_limits<off_t>::max());
    d.fc_degree = H5F_CLOSE_STRONG;
    d.open = open_file;
    d.close = close_file;
    d.cmp = compare;
    d.query = query;
    d.get_eoa = get_eoa;
    d.set_eoa = set_eoa;
    d.get_eof = get_eof;
    d.get_handle = get_handle;
    d.read = read;
    d.write = write;
    d.truncate = truncate;
    constexpr H5FD_mem_t kMap[] = H5FD_FLMAP_DICHOTOMY;
    std::copy(std::begin(kMap), std::end(kMap), d.fl_map);
    return d;
  }();
  return H5FDregister(&driver);
}

}  // namespace

hid_t create_file(const std::string& path, hid_t access, WriteState& state) {
  static const hid_t driver = register_driver();
  H5Pset_driver(access, driver, nullptr);
  opening = &state;
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access);
  opening = nullptr;
  return file;
}

}  // namespace mmt::h5
