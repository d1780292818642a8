// A catalogue of 10,000 routes beside one of the size that ships: `bench:routes`.

import { createDocuments } from '../../src/gateway/documents/documents'
import * as Route from '../../src/gateway/Route'
import { startChains } from '../harness/chains'
import { generatedConfig, generatedPaths, generatedText, type Size } from './generated'
import { findLoad } from './load'
import { type Machine, prepareMachine, type Server } from './machine'
import * as Report from './Report'
import * as Stats from './Stats'
import { rpcUrlsOf, shippedConfig } from './shipped'

const small: Size = { merchants: 16, routes: 3 }
const large: Size = { merchants: 625, routes: 16 }
const rounds = 5
const seconds = 4
const warmUpSeconds = 3
/** Until every route was requested once, which signs its offers. */
const visitAllSeconds = 12
const connections = 32
const matchRounds = 21
/** A catalogue of this size may cost a tenth. */
const atLeast = 0.9
const matchAtMost = 1.1

type Candidate = {
  server: Server
  paths: readonly string[]
  perSecond: number[]
  cpuMicros: number[]
}

/** The same load on a small catalogue and on a large one. */
type Pair = { what: string; few: Candidate; many: Candidate; bound?: Report.Bound }

/** Unpaid 402 per second, for one route and for all of them in turn. */
async function benchAnswers(machine: Machine): Promise<{ rows: Report.Row[]; notes: string[] }> {
  const load = findLoad()
  const chains = await startChains(shippedConfig().networks)
  const servers: Server[] = []
  const serve = async (size: Size) => {
    const startedAt = performance.now()
    const args = [JSON.stringify(rpcUrlsOf(chains)), JSON.stringify(size)]
    const server = await machine.serve('catalogue.ts', args)
    servers.push(server)
    return { server, startMs: performance.now() - startedAt }
  }
  try {
    const [few, many, worn] = [await serve(small), await serve(large), await serve(large)]
    const candidate = ({ server }: { server: Server }, paths: readonly string[]): Candidate => ({
      server,
      paths,
      perSecond: [],
      cpuMicros: [],
    })
    const one = ['/m/merchant-7/data/1']
    const fewPaths = generatedPaths(small)
    const manyPaths = generatedPaths(large)
    const pairs: Pair[] = [
      {
        what: 'one route',
        few: candidate(few, one),
        many: candidate(many, one),
        bound: { atLeast },
      },
      {
        what: `${fewPaths.length} routes in turn`,
        few: candidate(few, fewPaths),
        many: candidate(many, spread(manyPaths, fewPaths.length)),
        bound: { atLeast },
      },
      // The processor's caches do not hold all answers, and each is signed once a minute: the worst
      // traffic.
      { what: 'all in turn', few: candidate(few, fewPaths), many: candidate(worn, manyPaths) },
    ]
    const candidates = pairs.flatMap((pair) => [pair.few, pair.many])
    const drive = ({ server, paths }: Candidate, time = seconds) =>
      load.drive({ url: server.url, status: 402, connections, seconds: time, paths })
    for (const each of candidates)
      await drive(each, each.paths === manyPaths ? visitAllSeconds : warmUpSeconds)
    for (let round = 0; round < rounds; round++)
      for (const each of round % 2 === 0 ? candidates : candidates.toReversed()) {
        const { perSecond, cpuMicros } = await machine.sample(async () => {
          // Offers that expired while the others were measured are made again before the
          // measurement.
          await drive(each, each.paths === manyPaths ? visitAllSeconds : 1)
          const before = machine.cpuSeconds(each.server.pid)
          const perSecond = await drive(each)
          const cpuSeconds = machine.cpuSeconds(each.server.pid) - before
          return { perSecond, cpuMicros: (cpuSeconds * 1e6) / (perSecond * seconds) }
        })
        each.perSecond.push(perSecond)
        each.cpuMicros.push(cpuMicros)
      }
    const rows = pairs.flatMap(compare)
    const notes = [
      `402: ${rounds} rounds of ${seconds} s, load by ${load.name} on ${connections} kept connections`,
      `start to listening, from sources: ${few.startMs.toFixed(0)} ms and ${many.startMs.toFixed(0)} ms`,
    ]
    return { rows, notes }
  } finally {
    await Promise.all(servers.map((server) => server.stop()))
    await Promise.all(chains.map((chain) => chain.stop()))
  }
}

function compare({ what, few, many, bound }: Pair): Report.Row[] {
  const against = `${small.merchants} merchants, ${small.merchants * small.routes} routes`
  return [
    Report.compare({
      what: `402 of 10,000 routes, ${what}`,
      against,
      ours: many.perSecond,
      theirs: few.perSecond,
      ...(bound === undefined ? {} : { bound }),
      format: (value) => `${(value / 1000).toFixed(1)}k/s`,
    }),
    Report.compare({
      what: `CPU of an answer, ${what}`,
      against,
      ours: many.cpuMicros,
      theirs: few.cpuMicros,
      format: (value) => `${value.toFixed(1)} us`,
    }),
  ]
}

/** Nanoseconds to canonicalise and match one path, also with a tail, out of so many paths in turn. */
function benchMatching(): Report.Row[] {
  const fewPaths = generatedPaths(small)
  const manyPaths = generatedPaths(large)
  const few = Route.compile(generatedConfig(small).merchants)
  const many = Route.compile(generatedConfig(large).merchants)
  const side = (matcher: Route.Matcher, paths: readonly string[]) => ({
    matcher,
    paths: paths.flatMap((path) => [path, `${path}/and/more`]),
    nanoseconds: [] as number[],
  })
  const pairs = [
    {
      what: `${fewPaths.length} in turn`,
      few: side(few, fewPaths),
      many: side(many, spread(manyPaths, fewPaths.length)),
      bound: { atMost: matchAtMost },
    },
    { what: 'all in turn', few: side(few, fewPaths), many: side(many, manyPaths) },
  ]
  for (let round = -2; round < matchRounds; round++)
    for (const pair of pairs)
      for (const each of round % 2 === 0 ? [pair.few, pair.many] : [pair.many, pair.few]) {
        const spent = timeMatches(each.matcher, each.paths)
        if (round >= 0) each.nanoseconds.push(spent)
      }
  return pairs.map(({ what, few, many, bound }) =>
    Report.compare({
      what: `match of 10,000 routes, ${what}`,
      against: `${fewPaths.length} routes`,
      ours: many.nanoseconds,
      theirs: few.nanoseconds,
      ...(bound === undefined ? {} : { bound }),
      format: (value) => `${value.toFixed(0)} ns`,
    }),
  )
}

function timeMatches(matcher: Route.Matcher, paths: readonly string[]): number {
  const times = 100_000
  let found = 0
  const startedAt = performance.now()
  for (let i = 0; i < times; i++) {
    const path = Route.canonicalize(paths[i % paths.length] ?? '')
    if (path !== undefined && Route.match(matcher, path) !== undefined) found++
  }
  const elapsedMs = performance.now() - startedAt
  if (found !== times) throw new Error('a path was not found')
  return (elapsedMs * 1e6) / times
}

/** So many entries of a list, evenly spread. */
function spread<T>(all: readonly T[], count: number): T[] {
  return all.filter((_, i) => i % Math.floor(all.length / count) === 0).slice(0, count)
}

/** What a start and a reload spend on a catalogue. */
function benchReading(): string[] {
  const text = generatedText(large)
  const times: Record<string, number[]> = { read: [], document: [], again: [] }
  const time = (name: string, run: () => unknown) => {
    const startedAt = performance.now()
    run()
    times[name]?.push(performance.now() - startedAt)
  }
  const request = new Request('http://localhost/openapi.json')
  for (let round = 0; round < rounds; round++) {
    let config = generatedConfig(small)
    time('read', () => {
      config = generatedConfig(large, {}, text)
    })
    const documents = createDocuments(config, {
      receiptAddress: '0x00000000000000000000000000000000DeaDBeef',
      isReady: () => true,
      facilitators: () => [],
      updatedAt: Date.now(),
    })
    time('document', () => documents.aggregate(request))
    time('again', () => documents.aggregate(request))
  }
  const show = (name: string) => {
    const { median, min, max } = Stats.summarize(times[name] ?? [])
    return `${median.toFixed(2)} ms [${min.toFixed(2)}..${max.toFixed(2)}]`
  }
  return [
    `read and check merchants.toml of 10,000 routes (${(text.length / 1e6).toFixed(1)} MB): ${show('read')}`,
    `its /openapi.json the first time after a reload: ${show('document')}, then ${show('again')}`,
  ]
}

const machine = prepareMachine()
const answers = await benchAnswers(machine)
const rows = [...answers.rows, ...benchMatching()]
const { repeated, kept } = machine.disturbances()
const notes = [
  `Bun ${Bun.version}, ${machine.description}. Ratios are within one round, median [min..max].`,
  ...answers.notes,
  ...benchReading(),
  ...(repeated > 0 ? [`Other programs disturbed samples: ${repeated} were taken again.`] : []),
  ...(kept > 0 ? [`${kept} samples are disturbed.`] : []),
]
process.stdout.write(`\n${[...Report.format(rows), '', ...notes].join('\n')}\n`)
process.exit(0)
