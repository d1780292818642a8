/**
 * Collects all garbage. Returns how many ms of CPU that took. Elapsed time would also count other
 * programs of a busy machine, and the pause that is computed from it would be too long.
 */
export function collect(run: () => void = () => Bun.gc(true)): number {
  const before = process.cpuUsage()
  run()
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1000
}
