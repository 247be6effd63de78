// Processors hold scratch memory, so a thread borrows one at a time; there are as many as were ever in use at once.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace mmt::data {

template <class Processor, class Options> class ProcessorPool {
 public:
  explicit ProcessorPool(const Options& options) : options_(options) {}

  template <class Use> void use(Use&& work) {
    std::unique_ptr<Processor> processor;
    {
      const std::lock_guard lock(mutex_);
      if (!free_.empty()) {
        processor = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (!processor) processor = std::make_unique<Processor>(options_);
    work(*processor);  // after an exception the processor is not used again
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(processor));
  }

 private:
  Options options_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Processor>> free_;
};

}  // namespace mmt::data
