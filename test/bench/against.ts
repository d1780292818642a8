// This checkout beside another one, in alternated rounds: 402s, payments, the start and the memory. It asserts
// nothing about time.

import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, relative, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { startChains } from '../harness/chains'
import { freePort, localText, type Program, start } from './cold'
import { driveSockets, findLoad } from './load'
import { type Machine, prepareMachine } from './machine'
import { type Candidate, type Load, lengthened, loads } from './paid/candidates'
import { sample } from './paid/sample'
import { latency, perSecond } from './paid/tables'
import * as Report from './Report'
import { rpcUrlsOf, shippedConfig, shippedEnv, shippedText } from './shipped'

const usage = `bench:against DIRECTORY [--rounds 7] [--only 402|paid|start|memory] [--load TEXT] [--warm-up N] [--payments N]
              [--postgres]
  DIRECTORY  another checkout, with its packages installed
  --load     payments whose load and protocol contain it, such as "256 payers, x402"
  --warm-up  so many payments before those that count, at least (default: as in bench:paid, where a new
             server still compiles its code)
  --payments so many payments that count, at least (default: as in bench:paid, which takes a second)
  --postgres payments with PostgreSQL in place of SQLite
`
/** Seconds of one sample of 402s. */
const seconds = 1
const connections = 32
/** Wait before the memory of an idle service is read, and the length of its load. */
const idleMs = 4_000
const loadSeconds = 15
const paths = ['/m/catjoke/joke', '/m/weather/forecast']

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    rounds: { type: 'string', default: '7' },
    only: { type: 'string' },
    load: { type: 'string', default: '' },
    'warm-up': { type: 'string', default: '0' },
    payments: { type: 'string', default: '0' },
    postgres: { type: 'boolean', default: false },
  },
})
const other = resolve(positionals[0] ?? '')
const rounds = Number(values.rounds)
const warmUp = Number(values['warm-up'])
const paymentsMin = Number(values.payments)
const parts = { '402': unpaid, paid, start: starts, memory }
const names = Object.keys(parts) as (keyof typeof parts)[]
const chosen = names.filter((name) => values.only === undefined || values.only === name)
const isKnown = positionals.length === 1 && existsSync(join(other, 'test', 'bench', 'servers'))
if (!isKnown || !(rounds >= 1) || !(warmUp >= 0) || !(paymentsMin >= 0) || chosen.length === 0) {
  process.stderr.write(usage)
  process.exit(2)
}

const machine = prepareMachine()
const rows: Report.Row[] = []
for (const name of chosen) {
  process.stderr.write(`bench:against: ${name} ...\n`)
  const found = await parts[name](machine)
  process.stderr.write(`${Report.format(found).join('\n')}\n`)
  rows.push(...found)
}
const { repeated, kept } = machine.disturbances()
const notes = [
  `Bun ${Bun.version}, ${machine.description}; ${rounds} alternated rounds against ${other}.`,
  `Samples taken again because of other programs: ${repeated}; kept although disturbed: ${kept}.`,
]
process.stdout.write(`\n${[...Report.format(rows), '', ...notes].join('\n')}\n`)
process.exit(0)

/** A value of both in each round, the order of the two alternated. */
async function alternate<T>(
  take: (isOurs: boolean) => Promise<T>,
): Promise<{ ours: T[]; theirs: T[] }> {
  const taken = { ours: [] as T[], theirs: [] as T[] }
  for (let round = 0; round < rounds; round++) {
    for (const isOurs of round % 2 === 0 ? [true, false] : [false, true]) {
      const value = await machine.sample(() => take(isOurs))
      ;(isOurs ? taken.ours : taken.theirs).push(value)
    }
  }
  return taken
}

/** Path of a server script of either checkout, from a folder of this bench. */
function scriptOf(isOurs: boolean, folder: string, script: string): string {
  const path = join('test', 'bench', folder, script)
  return isOurs ? script : relative(join(import.meta.dir, folder), join(other, path))
}

async function unpaid(machine: Machine): Promise<Report.Row[]> {
  const load = findLoad()
  const chains = await startChains(shippedConfig().networks)
  const urls = [JSON.stringify(rpcUrlsOf(chains))]
  const ours = await machine.serve(scriptOf(true, 'servers', 'ours.ts'), urls)
  const theirs = await machine.serve(scriptOf(false, 'servers', 'ours.ts'), urls)
  try {
    const found: Report.Row[] = []
    for (const path of paths) {
      const urlOf = (isOurs: boolean) => (isOurs ? ours : theirs).url + path
      for (const isOurs of [true, false]) {
        await driveSockets({ url: urlOf(isOurs), status: 402, connections, seconds: 1.5 })
      }
      const taken = await alternate(async (isOurs) => {
        const { pid } = isOurs ? ours : theirs
        const before = machine.cpuSeconds(pid)
        const url = urlOf(isOurs)
        const perSecond = await load.drive({ url, status: 402, connections, seconds })
        return { perSecond, cpu: (machine.cpuSeconds(pid) - before) / (perSecond * seconds) }
      })
      const what = `402 of GET ${path}`
      found.push(
        rate(
          what,
          pick(taken, ({ perSecond }) => perSecond),
        ),
      )
      found.push(
        processor(
          what,
          pick(taken, ({ cpu }) => cpu * 1000),
        ),
      )
    }
    return found
  } finally {
    await Promise.all([ours.stop(), theirs.stop()])
    await Promise.all(chains.map((chain) => chain.stop()))
  }
}

async function paid(machine: Machine): Promise<Report.Row[]> {
  const found: Report.Row[] = []
  const known = loads.filter(({ blockTimeMs }) => blockTimeMs === undefined)
  for (const load of known.map((each) => lengthened(each, { warmUp, payments: paymentsMin }))) {
    for (const protocol of ['mpp', 'x402'] as const) {
      if (!`${load.name}, ${protocol}`.includes(values.load)) continue
      process.stderr.write(`bench:against: ${load.name}, ${protocol} ...\n`)
      found.push(...(await payments(machine, load, protocol)))
    }
  }
  return found
}

async function payments(
  machine: Machine,
  load: Load,
  protocol: Candidate['protocol'],
): Promise<Report.Row[]> {
  const taken = await alternate(async (isOurs) => {
    const [kind, file] = values.postgres
      ? (['postgres', 'ours-postgres.ts'] as const)
      : (['ours', 'ours.ts'] as const)
    const script = scriptOf(isOurs, join('paid', 'servers'), file)
    const candidate = { name: '', kind, protocol, script, args: [] }
    const run = await sample(machine, candidate, load)
    if (run.paid < run.tried) throw new Error(`${run.tried - run.paid} payments failed`)
    return run
  })
  const what = `${load.name}, ${protocol}`
  const speed =
    load.payers > 1
      ? rate(what, pick(taken, perSecond))
      : time(
          `${what}: median`,
          pick(taken, (run) => latency(run, 0.5)),
        )
  return [
    speed,
    processor(
      what,
      pick(taken, ({ cpuMs }) => cpuMs),
    ),
  ]
}

/** The executables of both, with the configuration `textOf` a checkout. */
async function withPrograms(
  path: string,
  textOf: typeof shipped,
  compare: (programOf: (isOurs: boolean) => Program, directory: string) => Promise<Report.Row[]>,
): Promise<Report.Row[]> {
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-bench-'))
  const chains = await startChains(shippedConfig().networks)
  try {
    const port = freePort()
    const programOf = async (root: string, name: string): Promise<Program> => {
      const file = join(directory, name)
      // Each with its own flags.
      const own: typeof import('../../src/build') = await import(join(root, 'src', 'build.ts'))
      await own.build({ entry: join(root, 'src', 'main.ts'), outfile: file })
      const prepare = (cwd: string) => {
        writeFileSync(join(cwd, 'merchants.toml'), textOf(root, rpcUrlsOf(chains), port))
        return shippedEnv
      }
      return { file, prepare, url: `http://127.0.0.1:${port}${path}`, expected: 402 }
    }
    const ours = await programOf(join(import.meta.dir, '..', '..'), 'ours')
    const theirs = await programOf(other, 'theirs')
    return await compare((isOurs) => (isOurs ? ours : theirs), directory)
  } finally {
    await Promise.all(chains.map((chain) => chain.stop()))
    rmSync(directory, { recursive: true, force: true })
  }
}

function shipped(root: string, rpcUrls: Readonly<Record<string, string>>, port: number): string {
  return localText(rpcUrls, port, shippedText(root))
}

function starts(machine: Machine): Promise<Report.Row[]> {
  return withPrograms('/m/catjoke/joke', shipped, async (programOf, directory) => {
    for (const isOurs of [true, false]) await start(machine, programOf(isOurs), directory)
    const taken = await alternate((isOurs) => start(machine, programOf(isOurs), directory))
    return [
      time(
        'start to the first answer',
        pick(taken, ({ answerMs }) => answerMs),
      ),
      time(
        'start to the first 402',
        pick(taken, ({ expectedMs }) => expectedMs),
      ),
    ]
  })
}

/** The memory with one merchant: when the service is idle, and after 402s. */
function memory(machine: Machine): Promise<Report.Row[]> {
  const load = findLoad()
  // The shipped file without its other merchants and what follows them.
  const small: typeof shipped = (root, rpcUrls, port) => {
    const [head = '', ...merchants] = shipped(root, rpcUrls, port).split(/^(?=\[\[merchants\]\])/m)
    return head + merchants.find((text) => text.includes('slug = "catjoke"'))
  }
  return withPrograms('/m/catjoke/joke', small, async (programOf, directory) => {
    const taken = await alternate(async (isOurs) => {
      const program = programOf(isOurs)
      const megabytes: number[] = []
      await start(machine, program, directory, async (pid) => {
        await Bun.sleep(idleMs)
        megabytes.push(residentMegabytes(pid))
        await load.drive({ url: program.url, status: 402, connections, seconds: loadSeconds })
        await Bun.sleep(idleMs)
        megabytes.push(residentMegabytes(pid))
      })
      return megabytes
    })
    const rows = ['memory after the start', `memory after ${loadSeconds} s of 402s`]
    const format = (value: number) => `${value.toFixed(1)} MB`
    return rows.map((what, at) => {
      const of = pick(taken, (megabytes) => megabytes[at] ?? 0)
      return Report.compare({ what, against: 'the other', ...of, bound: { atMost: 1.02 }, format })
    })
  })
}

/** Memory of a process in RAM, as Linux counts it. */
function residentMegabytes(pid: number): number {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  return Number(/^VmRSS:\s+(\d+) kB/m.exec(status)?.[1]) / 1024
}

type Taken = { ours: readonly number[]; theirs: readonly number[] }

function pick<T>(
  { ours, theirs }: { ours: readonly T[]; theirs: readonly T[] },
  value: (sample: T) => number,
): Taken {
  return { ours: ours.map(value), theirs: theirs.map(value) }
}

/** Other programs disturb this less than a time: ms of the server's processor for each. */
function processor(what: string, taken: Taken): Report.Row {
  const format = (value: number) => `${value.toFixed(3)} ms`
  return Report.compare({ what: `${what}: CPU`, against: 'the other', ...taken, format })
}

function rate(what: string, taken: Taken): Report.Row {
  const format = (value: number) => `${value.toFixed(0)}/s`
  return Report.compare({ what, against: 'the other', ...taken, bound: { atLeast: 0.98 }, format })
}

function time(what: string, taken: Taken): Report.Row {
  const format = (value: number) => `${value.toFixed(1)} ms`
  return Report.compare({ what, against: 'the other', ...taken, bound: { atMost: 1.05 }, format })
}
