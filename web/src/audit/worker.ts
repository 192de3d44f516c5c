/** Verifies beside the page. */

import { type Head, verify } from "./verify";

addEventListener("message", (event: MessageEvent<{ text: string; head: Head | null }>) => {
  postMessage(verify(event.data.text, event.data.head));
});
