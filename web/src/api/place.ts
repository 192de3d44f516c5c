/** Where the cells below are read: of a living sandbox, or from the kept record of one that has ended. */

import { createContext, useContext } from "react";
import { segment } from "./client";

export type Place = "sandboxes" | "records";

export const PlaceContext = createContext<Place>("sandboxes");

/** Returns the path of a sandbox, or of its kept record. */
export function placePath(place: Place, id: string): string {
  return `/v1/${place}/${segment(id)}`;
}

export function usePlacePath(id: string): string {
  return placePath(useContext(PlaceContext), id);
}
