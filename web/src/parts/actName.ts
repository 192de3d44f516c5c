/** Names of acts that must be done once: what is sent again after its answer was lost keeps its name. */

import { useMemo } from "react";
import { actName } from "../api/client";
import { asProblem } from "../api/problem";

export type ActNames = {
  /** Returns the name of an act: the earlier one, where the same was sent and its outcome is not known. */
  of: (act: string) => string;
  /** Notes how the last act ended; null: it was done. */
  ended: (error: unknown) => void;
  /** Forgets the last act: the same, sent again, is another. */
  forget: () => void;
};

export function useActNames(): ActNames {
  return useMemo(() => {
    let last: { act: string; name: string } | null = null;
    const forget = () => {
      last = null;
    };
    return {
      of: (act) => {
        if (last?.act !== act) last = { act, name: actName() };
        return last.name;
      },
      ended: (error) => {
        if (error === null || !asProblem(error).isOutcomeUnknown) forget();
      },
      forget,
    };
  }, []);
}
