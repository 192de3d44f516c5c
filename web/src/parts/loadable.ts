/** A view whose code comes in a file of its own, and may have come before it is shown. */

import { type ComponentType, createElement, lazy, useState } from "react";

/** Returns the view, and what loads its code early.
 *
 * React shows the placeholder of a lazy component also where its code is there, for at least 300 ms: what has come is
 * rendered without one.
 */
export function loadable<Given extends object>(
  load: () => Promise<{ default: ComponentType<Given> }>,
): [ComponentType<Given>, () => Promise<unknown>] {
  let loaded: ComponentType<Given> | null = null;
  const begin = async () => {
    const made = await load();
    loaded = made.default;
    return made;
  };
  const Lazy = lazy(begin) as unknown as ComponentType<Given>;

  // biome-ignore lint/correctness/noComponentHookFactories: called once for each view, where modules begin
  function Loadable(given: Given) {
    // Once chosen it stays: another component in its place would begin anew.
    const [View] = useState<ComponentType<Given>>(() => loaded ?? Lazy);
    return createElement(View, given);
  }

  return [Loadable, begin];
}
