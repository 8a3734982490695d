// Maps of files that may be cut short, or become unreadable, while they are read.
//
// Reading such a page raises SIGBUS. The handler puts zeros in the place of what is missing, so that the reader comes to
// its end, and says that the map is torn. Whoever answers with what was read asks for that afterwards.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <vector>

namespace atta {

// A map of a file. Nodes are never freed, since the handler may look at them at any time; those of maps that have ended
// are used again.
struct MappedFile {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::size_t> bytes{0};  // 0: the map has ended
  std::atomic<bool> torn{false};
  MappedFile* next = nullptr;
};

inline std::atomic<MappedFile*> mapped_files{nullptr};
inline std::atomic<bool> files_damaged{false};  // a map is torn, or its file is known to have changed
inline struct sigaction before_torn_maps{};

// These two are called by one thread at a time.
inline void note_map(std::uintptr_t begin, std::size_t bytes) {
  MappedFile* file = mapped_files.load(std::memory_order_acquire);
  while (file != nullptr && file->bytes.load(std::memory_order_relaxed) != 0) file = file->next;
  const bool added = file == nullptr;
  if (added) file = new MappedFile;
  file->begin.store(begin, std::memory_order_relaxed);
  file->torn.store(false, std::memory_order_relaxed);
  file->bytes.store(bytes, std::memory_order_release);
  if (!added) return;
  file->next = mapped_files.load(std::memory_order_relaxed);
  mapped_files.store(file, std::memory_order_release);
}

inline void forget_map(std::uintptr_t begin) {
  for (MappedFile* file = mapped_files.load(std::memory_order_acquire); file != nullptr; file = file->next)
    if (file->begin.load(std::memory_order_relaxed) == begin) file->bytes.store(0, std::memory_order_release);
}

// Where the torn maps begin.
inline std::vector<std::uintptr_t> torn_maps() {
  std::vector<std::uintptr_t> found;
  for (MappedFile* file = mapped_files.load(std::memory_order_acquire); file != nullptr; file = file->next)
    if (file->bytes.load(std::memory_order_acquire) != 0 && file->torn.load()) found.push_back(file->begin.load());
  return found;
}

// Puts zeros from the page of `at` to the end of its map. Returns false where `at` is in no map.
inline bool tear_map(std::uintptr_t at) {
  for (MappedFile* file = mapped_files.load(std::memory_order_acquire); file != nullptr; file = file->next) {
    const std::size_t bytes = file->bytes.load(std::memory_order_acquire);
    const std::uintptr_t begin = file->begin.load(std::memory_order_relaxed);
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const std::uintptr_t end = (begin + bytes + page - 1) / page * page;
    if (bytes == 0 || at < begin || at >= end) continue;
    file->torn.store(true);
    files_damaged.store(true);  // first: other threads may read the zeros at once
    const std::uintptr_t from = at / page * page;
    return mmap(reinterpret_cast<void*>(from), end - from, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
  }
  return false;
}

// Calls nothing that a signal handler must not: loads, stores and mmap, which is a system call.
inline void on_bus_error(int /*signal*/, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  if (!tear_map(reinterpret_cast<std::uintptr_t>(info->si_addr)))
    sigaction(SIGBUS, &before_torn_maps, nullptr);  // the instruction fails again, and what was there before hears of it
  errno = error;
}

inline bool outlive_torn_maps() {
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  return sigaction(SIGBUS, &action, &before_torn_maps) == 0;
}

}  // namespace atta
