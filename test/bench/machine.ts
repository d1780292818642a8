import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { cpus, tmpdir } from 'node:os'
import { join } from 'node:path'

/**
 * CPU that others may use during a sample, as a share of one core, before it counts as disturbed.
 */
const disturbedShare = 0.1
const attemptsMax = 3
/**
 * Total time for waiting for an idle machine and for repeated samples. After that, samples count in
 * any case.
 */
const patienceMs = 50_000

export type Machine = {
  /** The processors in use, for the report. */
  description: string
  /** Starts a script of `servers/` on the server's core; resolves when it has printed its URL. */
  serve(script: string, args?: readonly string[]): Promise<Server>
  /** The same on the core of the load. */
  serveBeside(script: string, args?: readonly string[]): Promise<Server>
  /** Prefix of a command that must run on the server's core. */
  onServerCore: readonly string[]
  /**
   * Takes a sample when the machine is idle, and repeats it when others used the machine. The least
   * disturbed of three counts.
   */
  sample<T>(measure: () => Promise<T>): Promise<T>
  /** Waits until this process and its descendants are idle for a moment, at most five seconds. */
  settle(): Promise<void>
  /** CPU seconds that a process has used; 0 where they cannot be read. */
  cpuSeconds(pid: number): number
  /** Samples repeated, and samples kept although they were disturbed. */
  disturbances(): { repeated: number; kept: number }
}

export type Server = { url: string; pid: number; stop(): Promise<void> }

/** Moves this process, and with it chains and load, to the second core where that is possible. */
export function prepareMachine(): Machine {
  const cores = cpus().length
  const taskset = cores > 1 ? Bun.which('taskset') : null
  const pinned =
    taskset !== null && Bun.spawnSync([taskset, '-a', '-p', '-c', '1', `${process.pid}`]).success
  const onServerCore = pinned ? [taskset, '-c', '0'] : []
  let patience = patienceMs
  let repeated = 0
  let kept = 0

  return {
    description: pinned
      ? 'servers on core 0, load and chains on core 1'
      : `not pinned to cores (${cores} of them)`,
    onServerCore,
    serve: (script, args = []) => startServer([...onServerCore, ...commandOf(script), ...args]),
    serveBeside: (script, args = []) => startServer([...commandOf(script), ...args]),
    async sample(measure) {
      patience -= await waitForQuiet(patience)
      let best: { value: Awaited<ReturnType<typeof measure>>; share: number } | undefined
      for (let attempt = 1; attempt <= attemptsMax; attempt++) {
        const startedAt = performance.now()
        const others = othersSince()
        const value = await measure()
        const share = others()
        if (attempt > 1) patience -= performance.now() - startedAt
        if (best === undefined || share < best.share) best = { value, share }
        if (best.share <= disturbedShare) break
        if (attempt === attemptsMax || patience <= 0) {
          kept++
          break
        }
        repeated++
      }
      if (best === undefined) throw new Error('no sample')
      return best.value
    },
    settle,
    cpuSeconds: (pid) => (process.platform === 'linux' ? ticksOf(`${pid}`).ticks / 100 : 0),
    disturbances: () => ({ repeated, kept }),
  }
}

/** Waits until the machine is idle for a moment, at most two seconds. Returns the waiting time. */
async function waitForQuiet(patience: number): Promise<number> {
  const startedAt = performance.now()
  const limit = Math.min(patience, 2_000)
  for (;;) {
    const spent = performance.now() - startedAt
    if (spent >= limit) return spent
    const others = othersSince()
    await Bun.sleep(100)
    if (others() <= disturbedShare) return performance.now() - startedAt
  }
}

async function settle(): Promise<void> {
  const endsAt = performance.now() + 5_000
  let seen = process.platform === 'linux' ? ourTicks() : 0
  while (process.platform === 'linux' && performance.now() < endsAt) {
    await Bun.sleep(200)
    const ticks = ourTicks()
    // Our own look at them takes one or two ticks.
    if (ticks - seen <= 2) return
    seen = ticks
  }
}

function commandOf(script: string): string[] {
  return [process.execPath, join(import.meta.dir, 'servers', script)]
}

async function startServer(command: readonly string[]): Promise<Server> {
  // Data directories are inside it, and are removed with it.
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-bench-'))
  const child = Bun.spawn([...command], {
    stdin: 'ignore',
    stdout: 'pipe',
    stderr: 'inherit',
    env: { ...process.env, NODE_ENV: 'production', TMPDIR: directory },
  })
  const url = await findUrl(child.stdout)
  if (url === undefined) throw new Error(`${command.join(' ')} did not start`)
  return {
    url,
    pid: child.pid,
    async stop() {
      child.kill('SIGKILL')
      await child.exited
      rmSync(directory, { recursive: true, force: true })
    },
  }
}

/** The first line that is a URL. Further output is read and dropped, so that the server may log. */
async function findUrl(stdout: ReadableStream<Uint8Array>): Promise<string | undefined> {
  const { promise, resolve } = Promise.withResolvers<string | undefined>()
  const read = async () => {
    let text: string | undefined = ''
    const decoder = new TextDecoder()
    for await (const chunk of stdout) {
      if (text === undefined) continue
      text += decoder.decode(chunk, { stream: true })
      const url = /^(http:\S+)\n/m.exec(text)?.[1]
      if (url === undefined) continue
      resolve(url)
      text = undefined
    }
    resolve(undefined)
  }
  void read()
  return promise
}

/** Share of one core that processes outside our tree used between the two calls; 0 if not Linux. */
function othersSince(): () => number {
  if (process.platform !== 'linux') return () => 0
  const before = { all: machineTicks(), ours: ourTicks(), at: performance.now() }
  return () => {
    const elapsedTicks = (performance.now() - before.at) / 10
    const others = machineTicks() - before.all - (ourTicks() - before.ours)
    return others / Math.max(elapsedTicks, 1)
  }
}

/** User, nice, system and stolen time of all cores, in ticks of 10 ms: proc_stat(5). */
function machineTicks(): number {
  const [line = ''] = readFileSync('/proc/stat', 'utf8').split('\n')
  const fields = line.trim().split(/\s+/).slice(1).map(Number)
  return [0, 1, 2, 7].reduce((sum, index) => sum + (fields[index] ?? 0), 0)
}

/** Time of this process and its descendants, including those that ended and were waited for. */
function ourTicks(): number {
  const children = new Map<number, number[]>()
  const ticks = new Map<number, number>()
  for (const entry of readdirSync('/proc')) {
    if (!/^\d+$/.test(entry)) continue
    const process = ticksOf(entry)
    ticks.set(Number(entry), process.ticks)
    children.set(process.parent, [...(children.get(process.parent) ?? []), Number(entry)])
  }
  const pending = [process.pid]
  let sum = 0
  for (let pid = pending.pop(); pid !== undefined; pid = pending.pop()) {
    sum += ticks.get(pid) ?? 0
    pending.push(...(children.get(pid) ?? []))
  }
  return sum
}

/** A process's parent and its time with that of its ended children: proc_pid_stat(5). */
function ticksOf(pid: string): { parent: number; ticks: number } {
  let stat: string
  try {
    stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  } catch {
    // It has ended; its parent has its time.
    return { parent: 0, ticks: 0 }
  }
  // The name in parentheses may hold spaces; the fields after it are numbered from 3.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  const time = [11, 12, 13, 14].reduce((sum, index) => sum + Number(fields[index]), 0)
  return { parent: Number(fields[1]), ticks: time }
}
