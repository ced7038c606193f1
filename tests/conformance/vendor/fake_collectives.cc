// A stand-in for the makers' libraries for sums over chips: NCCL (and RCCL, which has its names),
// MCCL, HCCL and CNCL in one, by their public entry points. The chips' memory is the host's;
// members are threads of one process, which meet here.
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "fake_call.h"

using namespace terrace::device;

namespace {

constexpr int kBad = 4;  // an invalid argument, whatever the library
constexpr auto kPatience = std::chrono::seconds(20);

// Members that wait for each other; the last one to come does the work.
struct Group {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0;
  int here = 0;
  uint64_t round = 0;
  std::vector<float*> values;
  uint64_t count = 0;
  bool same = true;

  bool Meet(float* mine, uint64_t wanted) {
    std::unique_lock<std::mutex> lock(mutex);
    if (here++ == 0) {
      values.clear();
      count = wanted;
      same = true;
    }
    values.push_back(mine);
    same = same && count == wanted;
    const uint64_t now = round;
    if (here < size) {
      return changed.wait_for(lock, kPatience, [&] { return round != now; }) && same;
    }
    if (same && mine != nullptr) {
      for (uint64_t i = 0; i < count; ++i) {
        float sum = 0;
        for (const float* of : values) sum += of[i];
        for (float* of : values) of[i] = sum;
      }
    }
    here = 0;
    ++round;
    changed.notify_all();
    return same;
  }
};

std::map<uint64_t, Group>& Groups() {
  static std::map<uint64_t, Group> groups;
  return groups;
}

int MakeId(Call& call, void* id) {
  if (!call.ok()) return call.result();
  const uint64_t number = Groups().size() + 1;
  Groups()[number];
  std::memcpy(id, &number, sizeof(number));
  return 0;
}

// The group of `id`, with its size; null if there is none. Calls are counted before members wait.
Group* Find(Call& call, const void* id, int rank, int size) {
  uint64_t number = 0;
  std::memcpy(&number, id, sizeof(number));
  call.Need(Groups().contains(number) && rank >= 0 && rank < size, "no such group or member");
  if (!call.ok()) return nullptr;
  Group& group = Groups()[number];
  group.size = size;
  return &group;
}

int Join(void** member, Group* group, int code) {
  if (group == nullptr) return code;
  if (!group->Meet(nullptr, 0)) return kBad;
  *member = group;
  const std::lock_guard<std::recursive_mutex> lock(Fake().mutex);
  ++Fake().contexts;
  return 0;
}

int Leave(Release& call, void* member) {
  return call.Done(member != nullptr && --Fake().contexts >= 0);
}

int Sum(const void* from, void* to, uint64_t count, void* member, int code) {
  if (code != 0) return code;
  return from == to && static_cast<Group*>(member)->Meet(static_cast<float*>(to), count) ? 0 : kBad;
}

struct UniqueId {
  char bytes[128];
};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

VendorFake* terrace_fake_state() { return &Fake(); }

#define TERRACE_FAKE_NCCL(prefix)                                                          \
  int prefix##GetUniqueId(UniqueId* id) {                                                  \
    Call call(__func__, kBad, kAnywhere);                                                  \
    return MakeId(call, id);                                                               \
  }                                                                                        \
  int prefix##CommInitRank(void** member, int size, UniqueId id, int rank) {               \
    Group* group = nullptr;                                                                \
    int code = 0;                                                                          \
    {                                                                                      \
      Call call(__func__, kBad, kAnywhere);                                                \
      group = Find(call, &id, rank, size);                                                 \
      code = call.result();                                                                \
    }                                                                                      \
    return Join(member, group, code);                                                      \
  }                                                                                        \
  int prefix##CommDestroy(void* member) {                                                  \
    Release call(__func__);                                                                \
    return Leave(call, member);                                                            \
  }                                                                                        \
  int prefix##AllReduce(const void* from, void* to, size_t count, int type, int operation, \
                        void* member, void* stream) {                                      \
    int code = 0;                                                                          \
    {                                                                                      \
      Call call(__func__, kBad, kAnywhere);                                                \
      call.Need(type == 7 && operation == 0 && stream != nullptr, "not a sum of float32"); \
      code = call.result();                                                                \
    }                                                                                      \
    return Sum(from, to, count, member, code);                                             \
  }                                                                                        \
  const char* prefix##GetErrorString(int) { return "made to fail"; }
TERRACE_FAKE_NCCL(nccl)
TERRACE_FAKE_NCCL(mccl)

int HcclGetRootInfo(void* info) {
  Call call(__func__, kBad, kAnywhere);
  return MakeId(call, info);
}
int HcclCommInitRootInfo(uint32_t size, const void* info, uint32_t rank, void** member) {
  Group* group = nullptr;
  int code = 0;
  {
    Call call(__func__, kBad, kAnywhere);
    group = Find(call, info, static_cast<int>(rank), static_cast<int>(size));
    code = call.result();
  }
  return Join(member, group, code);
}
int HcclCommDestroy(void* member) {
  Release call(__func__);
  return Leave(call, member);
}
int HcclAllReduce(void* from, void* to, uint64_t count, int type, int operation, void* member,
                  void* stream) {
  int code = 0;
  {
    Call call(__func__, kBad, kAnywhere);
    call.Need(type == 4 && operation == 0 && stream != nullptr, "not a sum of float32");
    code = call.result();
  }
  return Sum(from, to, count, member, code);
}

int cnclGetCliqueId(void* id) {
  Call call(__func__, kBad, kAnywhere);
  return MakeId(call, id);
}
int cnclInitComms(void** members, int count, const int* devices, const int* ranks, int size,
                  const void* id) {
  Group* group = nullptr;
  int code = 0;
  {
    Call call(__func__, kBad, kAnywhere);
    call.Need(count == 1 && devices[0] == 0, "one member, of device 0");
    group = Find(call, id, ranks[0], size);
    code = call.result();
  }
  return Join(members, group, code);
}
int cnclFreeComm(void* member) {
  Release call(__func__);
  return Leave(call, member);
}
int cnclAllReduce(const void* from, void* to, size_t count, int type, int operation, void* member,
                  void* queue) {
  int code = 0;
  {
    Call call(__func__, kBad, kAnywhere);
    call.Need(type == 0x12 && operation == 0 && queue != nullptr, "not a sum of float32");
    code = call.result();
  }
  return Sum(from, to, count, member, code);
}

}  // extern "C"
#pragma GCC visibility pop
