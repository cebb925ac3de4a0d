// Which block reader reads these files: io_uring where the kernel allows it and the file system has
// direct reads, threads otherwise (buffered reads through a ring are slower than by threads).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/block_reader.h"
#include "storage/read_queue.h"

namespace glmd {

enum class ReaderKind { automatic, io_uring, threads };

std::optional<ReaderKind> reader_kind_from(std::string_view name);  // auto, io_uring, threads

struct ReaderSettings {
  ReaderKind kind = ReaderKind::automatic;
  int in_flight_max = 16;  // segments; that many threads, where threads read
  ReadQueueOptions queue = {};
};

struct OpenedReader {
  std::unique_ptr<BlockReader> reader;
  // For the log: "io_uring, direct", "16 threads, buffered: FILE is on a file system without direct
  // reads".
  std::string description;
  bool is_direct = false;
};

Result<OpenedReader> open_block_reader(const std::vector<std::string>& paths,
                                       const ReaderSettings& settings);

}  // namespace glmd
