/** What the login of this page may do, as far as the page must know it before it offers an act. */

import { createContext, useContext } from "react";

/** Whether it may do something with sandboxes; a key with `watch` alone looks, and no more. */
export const MayActContext = createContext(true);

export function useMayAct(): boolean {
  return useContext(MayActContext);
}
