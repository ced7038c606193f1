#include "tier/page_trace.h"

#include <gmock/gmock.h>

namespace terrace::tier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kPage = PageTrace::kPageBytes;

TEST(PageTraceTest, CountsTheReadsOfEachPageThatARangeTouches) {
  PageTrace trace;
  trace.Touch(7, 1, 0, 3 * kPage);
  trace.Touch(7, 1, kPage + 5, 1);
  trace.Touch(7, 1, 2 * kPage - 1, 2);  // the end of one page and the beginning of the next
  trace.Touch(7, 1, 4 * kPage, kPage);
  trace.Touch(7, 1, 9 * kPage, 0);
  const auto reads = trace.Reads(7);
  ASSERT_EQ(reads.size(), 2u);
  EXPECT_THAT(reads[0], IsEmpty());
  EXPECT_THAT(reads[1], ElementsAre(1, 3, 2, 0, 1));
}

TEST(PageTraceTest, ModelsAreCountedApartAndForgotten) {
  PageTrace trace;
  trace.Touch(1, 0, 0, 1);
  trace.Touch(2, 0, kPage, 1);
  EXPECT_THAT(trace.Reads(1), ElementsAre(ElementsAre(1)));
  EXPECT_THAT(trace.Reads(2), ElementsAre(ElementsAre(0, 1)));
  trace.Forget(1);
  EXPECT_THAT(trace.Reads(1), IsEmpty());
  EXPECT_THAT(trace.Reads(3), IsEmpty());
}

}  // namespace
}  // namespace terrace::tier
