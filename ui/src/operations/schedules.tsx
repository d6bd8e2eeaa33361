/** Playbooks that start by themselves. */
import { EmptyState } from "../frame/pieces";

export function Schedules() {
  return <EmptyState title="No schedules yet" />;
}
