/** Workers, queue, schedules, credentials: `params.rest` is what follows /operations/ in the address. */
import { EmptyState } from "../frame/pieces";

export function Operations({ params }: { params: Record<string, string> }) {
  return <EmptyState title={params.rest || "Operations"} />;
}
