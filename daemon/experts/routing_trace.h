// A file of routing choices, for replaying caches (glmd-replay). Little-endian: a header, then one
// record a layer and pass.
//   header  "GLMDRTNG", u32 version, u32 layers, u64 model identity, u32 experts, u32 chosen,
//           u64 bytes of one expert [layers], 0 where the layer is dense
//   record  u32 layer, u32 rows, u32 position [rows], u16 expert [rows][chosen]
// A row whose position does not follow that of the row before it belongs to another sequence.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
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

struct RoutingTrace {
  struct Step {
    int32_t layer = 0;
    int64_t first_row = 0, row_count = 0;
  };
  RoutingShape shape;
  std::vector<Step> steps;
  std::vector<uint32_t> positions;  // [all rows]
  std::vector<uint16_t> experts;    // [all rows][chosen]
  bool is_cut = false;              // the last record was incomplete and is left out
};

// The file is untrusted: every count is checked against its bytes before memory is taken.
Result<RoutingTrace> read_routing_trace(const std::string& path);

// Appends records from a thread of its own. What cannot be written (a full disk, or one that is so
// slow that 16 MiB wait) ends the trace on a whole record, or without a file where not even the
// header was written; nothing else suffers.
class RoutingTraceWriter : public RoutingObserver {
 public:
  // Errors: the file cannot be made, or is no regular one. `on_end` is told once, from the writing
  // thread, when the trace ends early.
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
