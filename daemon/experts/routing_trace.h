// A file of routing choices, for replaying caches (glmd-replay). Little-endian: a header, then one
// record a layer and pass.
//   header  "GLMDRTNG", u32 version, u32 layers, u64 model identity, u32 experts, u32 chosen,
//           u64 bytes of one expert [layers], 0 where the layer is dense,
//           u64 XXH3 of the header up to here; version 1 is without
//   record  u32 layer, u32 rows, u32 position [rows], u16 expert [rows][chosen]
// A row whose position does not follow that of the row before it belongs to another sequence.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "experts/routing_observer.h"
#include "platform/file.h"
#include "platform/result.h"
#include "storage/container.h"

namespace glmd {

struct RoutingShape {
  uint64_t identity = 0;
  int64_t experts = 0, chosen = 0;
  std::vector<int64_t> expert_bytes;  // of each layer of the model, the draft layer last; 0: dense
};
RoutingShape routing_shape(const Container& container);

struct RoutingRecord {
  int32_t layer = 0;
  std::vector<uint32_t> positions;  // [rows]
  std::vector<uint16_t> experts;    // [rows][chosen], none twice in a row
};

// Reads a trace, from a regular file or a pipe, and holds no more of it than a record. The file is
// untrusted: every number is checked, and memory is taken as bytes come.
class RoutingTraceReader {
 public:
  static Result<RoutingTraceReader> open(const std::string& path);  // and its header

  const std::string& path() const { return file_.path(); }
  const RoutingShape& shape() const { return shape_; }
  int64_t file_bytes() const { return file_bytes_; }  // 0: a pipe, which tells no size
  Result<bool> next(RoutingRecord& record);           // false at the end
  bool is_cut() const { return is_cut_; }             // there: the last record was incomplete

 private:
  RoutingTraceReader(File file, int64_t file_bytes);
  Result<std::span<const uint8_t>> peek();
  template <typename T>
  Result<bool> take(std::vector<T>& values, int64_t count);
  Result<void> read_header();
  Result<bool> read_record(RoutingRecord& record);
  Result<bool> end(int64_t record_offset);

  File file_;
  int64_t file_bytes_ = 0, offset_ = 0;
  std::vector<uint8_t> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what `buffer_` has
  uint32_t version_ = 0;
  RoutingShape shape_;
  int64_t rows_ = 0, expert_max_ = 0;  // seen
  std::vector<int64_t> row_of_;        // [experts]: that chose it last
  bool is_cut_ = false;
};

// Where an earlier trace of this name goes.
std::string kept_trace_path(const std::string& path);
// Whether a trace can be written to `path`: what exists there, and at the place where it would be
// kept, is a trace. Nothing is changed. Errors: config, and those of the disk.
Result<void> check_trace_place(const std::string& path);

// Appends records from a thread of its own. An earlier trace of that name is kept as `path`.1, in
// place of an older one; any other file is refused, not touched. What cannot be written (a full
// disk, or one that is so slow that 16 MiB wait) ends the trace on a whole record, or without a
// file where not even the header was written; nothing else suffers.
class RoutingTraceWriter : public RoutingObserver {
 public:
  // Errors: those of check_trace_place(); the file cannot be made; another program writes it
  // (busy). `on_end` is told once, from the writing thread, when the trace ends early.
  static Result<std::unique_ptr<RoutingTraceWriter>> create(
      const std::string& path, const RoutingShape& shape, std::function<void(const Error&)> on_end);
  ~RoutingTraceWriter() override;  // writes what waits
  RoutingTraceWriter(const RoutingTraceWriter&) = delete;
  RoutingTraceWriter& operator=(const RoutingTraceWriter&) = delete;

  void routed(const RoutedRows& rows) override;

 private:
  RoutingTraceWriter(File file, std::function<void(const Error&)> on_end);
  void run(const std::vector<uint8_t>& header);
  bool write_or_end(const std::vector<uint8_t>& bytes, bool is_overrun);
  Result<void> write(const std::vector<uint8_t>& bytes);

  File file_;  // the writing thread's, as is what follows
  std::function<void(const Error&)> on_end_;
  int64_t written_bytes_ = 0;  // whole records

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<uint8_t> waiting_;  // whole records
  bool is_overrun_ = false, is_ended_ = false, is_closing_ = false;
  std::thread thread_;
};

}  // namespace glmd
