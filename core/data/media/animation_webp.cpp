// Animated WebP through libwebp's demultiplexer, which composes frames as Pillow has them (it uses the same).
#include "core/data/media/animation_codecs.h"

#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>

namespace mmt::data {
namespace {

using Demuxer = std::unique_ptr<WebPDemuxer, decltype(&WebPDemuxDelete)>;
using AnimationDecoder = std::unique_ptr<WebPAnimDecoder, decltype(&WebPAnimDecoderDelete)>;

/// The canvas, before anything is allocated for it.
WebPBitstreamFeatures animation_features(const ImageSource& source) {
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(source.data(), source.size(), &features) != VP8_STATUS_OK || features.has_animation == 0)
    source.fail(DataFault::corrupt_image, "damaged WebP: its header makes no sense");
  check_geometry(source, features.width, features.height);
  return features;
}

}  // namespace

bool is_animated_webp(std::span<const std::byte> bytes) {
  WebPBitstreamFeatures features;
  return WebPGetFeatures(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size(), &features) ==
             VP8_STATUS_OK &&
         features.has_animation != 0;
}

AnimationInfo read_webp_animation_info(const ImageSource& source, const AnimationLimits& limits) {
  const WebPBitstreamFeatures features = animation_features(source);
  AnimationInfo info{features.width, features.height, {}};
  const WebPData data{source.data(), source.size()};
  const Demuxer demuxer(WebPDemux(&data), WebPDemuxDelete);
  if (!demuxer) source.fail(DataFault::corrupt_image, "damaged WebP: the file ends early or its chunks make no sense");
  const auto frames = static_cast<std::int64_t>(WebPDemuxGetI(demuxer.get(), WEBP_FF_FRAME_COUNT));
  check_frame_count(source, limits, frames);
  WebPIterator frame;
  if (WebPDemuxGetFrame(demuxer.get(), 1, &frame) != 0) {
    do {
      if (frame.complete == 0) source.fail(DataFault::corrupt_image, "damaged WebP: the file ends in a frame");
      info.milliseconds.push_back(frame.duration);
    } while (WebPDemuxNextFrame(&frame) != 0);
    WebPDemuxReleaseIterator(&frame);
  }
  return info;
}

void decode_webp_animation(const ImageSource& source, const FrameSink& sink) {
  const WebPBitstreamFeatures features = animation_features(source);
  WebPAnimDecoderOptions options;
  MMT_CHECK(WebPAnimDecoderOptionsInit(&options) != 0, "libwebpdemux's headers and library differ in version");
  options.color_mode = MODE_RGBA;
  options.use_threads = 0;
  const WebPData data{source.data(), source.size()};
  const AnimationDecoder decoder(WebPAnimDecoderNew(&data, &options), WebPAnimDecoderDelete);
  if (!decoder) source.fail(DataFault::corrupt_image, "damaged WebP: its chunks make no sense");
  Image image{features.width, features.height, {}};
  const std::size_t pixels = static_cast<std::size_t>(features.width) * static_cast<std::size_t>(features.height);
  image.rgb.resize(3 * pixels);
  for (std::int64_t i = 0; WebPAnimDecoderHasMoreFrames(decoder.get()) != 0; ++i) {
    std::uint8_t* rgba = nullptr;
    int end_of_frame = 0;
    if (WebPAnimDecoderGetNext(decoder.get(), &rgba, &end_of_frame) == 0)
      source.fail(DataFault::corrupt_image, fmt::format("damaged WebP: frame {} cannot be decoded", i));
    for (std::size_t p = 0; p < pixels; ++p) {
      for (std::size_t c = 0; c < 3; ++c) image.rgb[3 * p + c] = rgba[4 * p + c];
    }
    if (!sink(i, image)) return;
  }
}

}  // namespace mmt::data
