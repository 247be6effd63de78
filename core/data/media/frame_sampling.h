// Which frames of a video are taken: pure functions, the same in the index and in the loader.
#pragma once

#include <cstdint>
#include <vector>

namespace mmt::data {

struct FrameSampling {
  double fps = 2;                 ///< frames a second that are taken; 0: all frames
  std::int64_t min_frames = 4;    ///< of a video that has as many
  std::int64_t max_frames = 768;  ///< of any video; spread evenly where there are more
  double list_fps = 0;            ///< frames a second of lists and folders of pictures; 0: not known, all are taken
};

/// Indices, ascending, of a video of `total` frames at `rate` frames a second (0: not known). Sampled by a rate, as
/// transformers' Qwen2VLVideoProcessor.sample_frames: total / rate * fps frames within the limits, down to a multiple
/// of `step` (frames that a patch spans), one every total / count frames from the first on; a video of fewer than
/// `step` frames keeps them all. Without a rate: all frames, or max_frames of them, spread likewise.
std::vector<std::int32_t> sample_frames(const FrameSampling& sampling, std::int64_t total, double rate, int step);

/// Frames a second: of `frames` frames that stand so long. A frame below 20 ms counts 100 ms, as browsers and ffmpeg
/// show it.
double frame_rate(const std::vector<std::int32_t>& milliseconds);

}  // namespace mmt::data
