// Colours of models, of what all models share, and of the parts of a request: the same ones on every
// page, whatever was seen first.
"use strict";

const PLACES = 18; // hues, 20 degrees apart
const SHARED = {
  workspace: "hsl(210 8% 50%)", staging: "hsl(210 8% 66%)", shared: "hsl(210 8% 40%)",
  queue: "hsl(40 60% 48%)", swap: "hsl(355 55% 50%)", prefill: "hsl(205 55% 46%)",
  decode: "hsl(150 45% 38%)",
};

function placeOf(name) {
  let hash = 2166136261; // FNV-1a
  for (let i = 0; i < name.length; ++i) hash = Math.imul(hash ^ name.charCodeAt(i), 16777619);
  return (hash >>> 0) % PLACES;
}

// A function from a name to its colour. `models` are all that there are, in the order of the
// configuration: one whose hue is near that of an earlier one takes the place farthest from all.
function palette(models) {
  const chosen = new Map();
  const taken = [];
  const apart = (place) =>
    Math.min(PLACES, ...taken.map((t) => Math.min((place - t + PLACES) % PLACES, (t - place + PLACES) % PLACES)));
  for (const name of models) {
    if (chosen.has(name)) continue;
    let place = placeOf(name);
    for (let i = 0, best = Math.min(apart(place), 3); i < PLACES; ++i) {
      const other = (placeOf(name) + i * 7) % PLACES; // seven steps on: all places are met
      if (apart(other) > best) [place, best] = [other, apart(other)];
    }
    taken.push(place);
    // The second round of as many models is lighter.
    chosen.set(name, hue(place, chosen.size < PLACES ? 62 : 78, 0.14));
  }
  return (name) => chosen.get(name) ?? SHARED[name] ?? hue(placeOf(name), 62, 0.05);
}

// Equally bright whatever the hue, and seen on light and on dark.
function hue(place, light, strong) {
  return `oklch(${light}% ${strong} ${place * (360 / PLACES)})`;
}
