#include "experts/run_experts.h"

#include <algorithm>
#include <cstring>

#include "platform/grown.h"
#include "storage/container.h"

namespace glmd {
namespace {

// The rows of one expert, packed: the kernels take consecutive rows.
Activations gather(const Activations& input, std::span<const int32_t> rows, ExpertScratch& scratch,
                   bool quantised) {
  const auto count = static_cast<int64_t>(rows.size());
  Activations packed = input;
  packed.row_count = count;
  if (count == 1) {  // no need to move it
    const int64_t row = rows[0], padded = padded_columns(input.columns);
    packed.values = input.values + row * input.value_stride;
    if (quantised) {
      packed.codes = input.codes + row * padded;
      packed.scales = input.scales + row * (padded / group_columns);
      packed.sums = input.sums + row * (padded / group_columns);
    }
    return packed;
  }
  if (!quantised) {
    float* values = grown(scratch.values, count * input.columns);
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(values + i * input.columns, input.values + rows[i] * input.value_stride,
                  static_cast<size_t>(input.columns) * sizeof(float));
    }
    packed.values = values;
    packed.value_stride = input.columns;
    return packed;
  }
  const int64_t padded = padded_columns(input.columns), groups = padded / group_columns;
  int8_t* codes = grown(scratch.codes, count * padded);
  float* scales = grown(scratch.scales, count * groups);
  int32_t* sums = grown(scratch.sums, count * groups);
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(codes + i * padded, input.codes + rows[i] * padded, static_cast<size_t>(padded));
    std::memcpy(scales + i * groups, input.scales + rows[i] * groups,
                static_cast<size_t>(groups) * sizeof(float));
    std::memcpy(sums + i * groups, input.sums + rows[i] * groups,
                static_cast<size_t>(groups) * sizeof(int32_t));
  }
  packed.codes = codes;
  packed.scales = scales;
  packed.sums = sums;
  return packed;
}

}  // namespace

void run_feed_forward(const KernelTable& kernels, Team& team, const Matrix& gate_up,
                      const Matrix& down, const Activations& input, ExpertScratch& scratch,
                      float* output, int64_t output_stride) {
  const int64_t width = gate_up.rows, rows = input.row_count;
  float* hidden = grown(scratch.hidden, rows * width);
  const auto gate_up_kernel = kernels.gate_up[static_cast<int>(gate_up.format)];
  team.run(width, tile_rows, [&](int64_t begin, int64_t end, int) {
    gate_up_kernel(gate_up, input, hidden, width, begin, end);
  });

  Activations middle{.values = hidden,
                     .value_stride = width,
                     .codes = nullptr,
                     .scales = nullptr,
                     .sums = nullptr,
                     .row_count = rows,
                     .columns = width};
  if (is_quantised(down.format)) {
    // The gathered input is spent: its buffers serve again.
    const int64_t padded = padded_columns(width), groups = padded / group_columns;
    int8_t* codes = grown(scratch.codes, rows * padded);
    float* scales = grown(scratch.scales, rows * groups);
    int32_t* sums = grown(scratch.sums, rows * groups);
    team.run(rows, 1, [&](int64_t begin, int64_t end, int) {
      kernels.quantise(hidden + begin * width, width, end - begin, width, codes + begin * padded,
                       scales + begin * groups, sums + begin * groups);
    });
    middle.codes = codes;
    middle.scales = scales;
    middle.sums = sums;
  }
  const auto down_kernel = kernels.matmul[static_cast<int>(down.format)];
  team.run(down.rows, tile_rows, [&](int64_t begin, int64_t end, int) {
    down_kernel(down, middle, output, output_stride, begin, end);
  });
}

namespace {

void run_one(const KernelTable& kernels, Team& team, const ExpertShape& shape,
             const ExpertWork& work, const uint8_t* bytes, const Activations& input,
             ExpertScratch& scratch, float* outputs) {
  const Matrix gate_up{bytes, shape.width, shape.hidden, shape.format};
  const Matrix down{bytes + expert_down_offset(shape.format, shape.width, shape.hidden),
                    shape.hidden, shape.width, shape.format};
  const Activations rows = gather(input, work.rows, scratch, is_quantised(shape.format));
  if (rows.row_count == 1) {
    run_feed_forward(kernels, team, gate_up, down, rows, scratch,
                     outputs + work.outputs[0] * shape.hidden, shape.hidden);
    return;
  }
  float* results = grown(scratch.results, rows.row_count * shape.hidden);
  run_feed_forward(kernels, team, gate_up, down, rows, scratch, results, shape.hidden);
  for (int64_t i = 0; i < rows.row_count; ++i) {
    std::memcpy(outputs + work.outputs[i] * shape.hidden, results + i * shape.hidden,
                static_cast<size_t>(shape.hidden) * sizeof(float));
  }
}

struct Hit {
  const ExpertWork* work;
  ExpertLease lease;
};

// In the order in which they lie on disk.
std::vector<const ExpertWork*> absent_of(const ExpertCache& cache,
                                         std::span<const ExpertWork> works) {
  std::vector<const ExpertWork*> absent;
  for (const ExpertWork& work : works) {
    if (cache.is_absent(work.expert)) absent.push_back(&work);
  }
  std::sort(absent.begin(), absent.end(), [&](const ExpertWork* a, const ExpertWork* b) {
    return cache.is_stored_before(a->expert, b->expert);
  });
  return absent;
}

}  // namespace

Result<void> run_experts(ExpertCache& cache, const KernelTable& kernels, Team& team,
                         const ExpertStep& step, const Activations& input, ExpertScratch& scratch,
                         float* outputs) {
  std::vector<ExpertWant> wants;
  for (const ExpertWork& work : step.works) {
    wants.push_back({work.expert, static_cast<int64_t>(work.rows.size()), work.uses});
  }
  cache.begin_step(step.layer, wants, step.pace);
  const std::vector<const ExpertWork*> absent = absent_of(cache, step.works);
  std::vector<Hit> hits;
  for (const ExpertWork& work : step.works) {
    std::optional<ExpertLease> lease = cache.find(work.expert);
    if (lease) hits.push_back({&work, std::move(*lease)});
  }

  const size_t arrival_count = step.works.size() - hits.size();  // absent, or on their way
  size_t hits_done = 0, begun = 0, arrivals_done = 0;
  bool has_more_to_do = step.meanwhile != nullptr;
  while (hits_done < hits.size() || arrivals_done < arrival_count || has_more_to_do) {
    // Reads first: they run while the rest computes.
    while (begun < absent.size() && cache.start_load(absent[begun]->expert)) ++begun;
    if (has_more_to_do) {
      has_more_to_do = false;
      step.meanwhile();
      continue;
    }
    std::optional<ExpertCache::Arrival> arrival = cache.poll_arrival();
    if (!arrival && hits_done < hits.size()) {
      Hit& hit = hits[hits_done++];
      run_one(kernels, team, step.shape, *hit.work, hit.lease.bytes(), input, scratch, outputs);
      hit.lease = ExpertLease();
      continue;
    }
    if (!arrival) arrival = cache.wait_for_arrival();
    ++arrivals_done;
    if (!arrival->lease.ok()) {
      cache.drain();
      return std::move(arrival->lease).error();
    }
    const auto work = std::find_if(
        step.works.begin(), step.works.end(),
        [&](const ExpertWork& candidate) { return candidate.expert == arrival->expert; });
    CHECK(work != step.works.end());
    run_one(kernels, team, step.shape, *work, arrival->lease.value().bytes(), input, scratch,
            outputs);
  }
  return {};
}

}  // namespace glmd
