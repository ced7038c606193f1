// Sums and maxima over the items of a group, for all of them. Comes before sources that need it.
// Where the dialect has sub-groups (SUBGROUPS), each reduces its own items without memory.

#ifndef ITEMS_A_GROUP
#define ITEMS_A_GROUP 64
#endif

#if SUBGROUPS
#define REDUCTION(NAME, OF_SUBGROUP, COMBINED)                   \
  FUNCTION float NAME(LOCAL float *scratch, float value) {       \
    const float part = OF_SUBGROUP(scratch, value);              \
    if (FIRST_OF_SUBGROUP()) scratch[SUBGROUP()] = part;         \
    BARRIER();                                                   \
    float all = scratch[0];                                      \
    for (int i = 1; i < SUBGROUP_COUNT(); ++i) {                 \
      const float other = scratch[i];                            \
      all = COMBINED(all, other);                                \
    }                                                            \
    BARRIER();                                                   \
    return all;                                                  \
  }
#else
#define REDUCTION(NAME, OF_SUBGROUP, COMBINED)                                     \
  FUNCTION float NAME(LOCAL float *scratch, float value) {                         \
    const int item = ITEM(0);                                                      \
    scratch[item] = value;                                                         \
    BARRIER();                                                                     \
    for (int half_count = ITEMS_A_GROUP / 2; half_count > 0; half_count /= 2) {    \
      if (item < half_count) {                                                     \
        scratch[item] = COMBINED(scratch[item], scratch[item + half_count]);       \
      }                                                                            \
      BARRIER();                                                                   \
    }                                                                              \
    const float all = scratch[0];                                                  \
    BARRIER();                                                                     \
    return all;                                                                    \
  }
#endif
#define SUM_OF(a, b) ((a) + (b))

REDUCTION(group_sum, SUBGROUP_SUM, SUM_OF)
REDUCTION(group_max, SUBGROUP_MAX, fmax)

