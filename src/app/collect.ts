/**
 * Collects all garbage. Returns how many ms of CPU that took: on a busy machine the time of day says
 * how busy it is, and what follows from it, the rest until the next collection, would be too long.
 */
export function collect(run: () => void = () => Bun.gc(true)): number {
  const before = process.cpuUsage()
  run()
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1000
}
