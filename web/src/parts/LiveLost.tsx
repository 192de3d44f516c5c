/** The bar over a view whose socket broke: short breaks are not worth a word. */

import { useEffect, useState } from "react";
import { useLostAt } from "../api/watch";
import { clock } from "./format";

const GRACE_MILLISECONDS = 2000;

export function LiveLost() {
  const lostAt = useLostAt();
  const [isLong, setLong] = useState(false);
  useEffect(() => {
    setLong(false);
    if (lostAt === null) return;
    const timer = setTimeout(() => setLong(true), GRACE_MILLISECONDS);
    return () => clearTimeout(timer);
  }, [lostAt]);

  if (lostAt === null || !isLong) return null;
  return (
    <p className="stale" role="status">
      The live view is interrupted since {clock(lostAt)}; the page asks every two seconds until it is back.
    </p>
  );
}
