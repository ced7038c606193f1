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
// configuration: of two whose names fall on the same hue the later one takes the next that is free.
function palette(models) {
  const chosen = new Map();
  const taken = new Set();
  for (const name of models) {
    if (chosen.has(name)) continue;
    let place = placeOf(name);
    // Seven steps on: far from its neighbours, and all places are met.
    for (let i = 0; taken.has(place) && i < PLACES; ++i) place = (place + 7) % PLACES;
    taken.add(place);
    // The second round of as many models is lighter.
    const light = chosen.size < PLACES ? 45 : 62;
    chosen.set(name, `hsl(${place * (360 / PLACES)} 55% ${light}%)`);
  }
  return (name) => chosen.get(name) ?? SHARED[name] ?? `hsl(${placeOf(name) * (360 / PLACES)} 25% 55%)`;
}
