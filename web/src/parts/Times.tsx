/** Spans that grow or shrink while they are looked at: each is rendered anew by itself, and not the list around it. */

import { duration, since } from "./format";
import { useTimeText } from "./hooks";

export function Age({ at }: { at: string }) {
  return useTimeText((now) => since(at, now));
}

export function TimeLeft({ until }: { until: string | null | undefined }) {
  return useTimeText((now) => (until ? duration((Date.parse(until) - now) / 1000) : "no end"));
}
