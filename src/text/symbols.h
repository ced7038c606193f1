// The merge loop that every BPE family shares: symbols in a linked list, candidates in a heap, best
// priority first and leftmost among equals. O(n log n) in the number of symbols, no recursion.
#ifndef TERRACE_TEXT_SYMBOLS_H_
#define TERRACE_TEXT_SYMBOLS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace terrace {

// A stretch [begin, begin + length) of the text being encoded. A length of 0 marks a symbol that
// has been merged into the one on its left.
struct Symbol {
  uint32_t begin = 0;
  uint32_t length = 0;
  int32_t id = -1;  // As the finder numbers symbols; -1 for what it does not know.
  int32_t prev = -1;
  int32_t next = -1;
};

struct MergeCandidate {
  uint32_t priority;  // Lower is merged first.
  int32_t left;       // Indices into the symbols.
  int32_t right;
  uint32_t length;  // Of both together; another sum means that one of them has since changed.
  int32_t id;       // Of the merged symbol.
};

// Reused from word to word within one encoding.
struct MergeScratch {
  std::vector<Symbol> symbols;
  std::vector<MergeCandidate> heap;

  // Appends a symbol after the last one.
  void Add(uint32_t begin, uint32_t length, int32_t id) {
    const int32_t index = static_cast<int32_t>(symbols.size());
    if (index > 0) symbols.back().next = index;
    symbols.push_back({begin, length, id, index - 1, -1});
  }
};

// Merges until nothing is left to merge. `find(left, right, &priority, &id)` says whether two
// neighbouring symbols can be merged. Afterwards the result is the list from symbol 0 along `next`.
// Returns the number of candidates taken from the heap: at most 3 a symbol.
template <typename Finder>
uint64_t MergeSymbols(MergeScratch* scratch, const Finder& find) {
  std::vector<Symbol>& symbols = scratch->symbols;
  std::vector<MergeCandidate>& heap = scratch->heap;
  auto later = [](const MergeCandidate& a, const MergeCandidate& b) {
    return a.priority > b.priority || (a.priority == b.priority && a.left > b.left);
  };
  auto candidate = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return false;
    MergeCandidate c{0, left, right, symbols[left].length + symbols[right].length, -1};
    if (!find(symbols[left], symbols[right], &c.priority, &c.id)) return false;
    heap.push_back(c);
    return true;
  };

  heap.clear();
  for (int32_t i = 1; i < static_cast<int32_t>(symbols.size()); ++i) candidate(i - 1, i);
  std::make_heap(heap.begin(), heap.end(), later);
  uint64_t steps = 0;
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const MergeCandidate best = heap.back();
    heap.pop_back();
    ++steps;
    Symbol& left = symbols[best.left];
    Symbol& right = symbols[best.right];
    if (left.length == 0 || right.length == 0 || left.length + right.length != best.length)
      continue;
    left.length = best.length;
    left.id = best.id;
    left.next = right.next;
    right.length = 0;
    if (left.next >= 0) symbols[left.next].prev = best.left;
    if (candidate(left.prev, best.left)) std::push_heap(heap.begin(), heap.end(), later);
    if (candidate(best.left, left.next)) std::push_heap(heap.begin(), heap.end(), later);
  }
  return steps;
}

}  // namespace terrace

#endif  // TERRACE_TEXT_SYMBOLS_H_
