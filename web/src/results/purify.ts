/** The one purifier of the page, whose name its policy allows once, and what it leaves of the HTML of a guest.
 *
 * Nothing that it makes is safe for the page's own document but what Markdown allows: HTML goes into still frames.
 */

import createDOMPurify, { type Config } from "dompurify";

export const purifier = createDOMPurify(window);

/** More would hold the page while it is read. */
const MOST_TAGS = 100_000;

const STILL: Config = {
  // With the styles of its head.
  WHOLE_DOCUMENT: true,
  // A link can connect to another host under any policy, and a `meta` can lead the frame away.
  FORBID_TAGS: ["link", "meta", "base", "iframe", "object", "embed", "form"],
};

/** Returns HTML without scripts and without what acts by itself, for a still frame; null where it is too much. */
export function stillHtml(html: string): string | null {
  let tags = 0;
  for (let at = html.indexOf("<"); at >= 0; at = html.indexOf("<", at + 1)) tags += 1;
  return tags > MOST_TAGS ? null : purifier.sanitize(html, STILL);
}
