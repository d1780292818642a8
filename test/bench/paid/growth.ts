// The cost of a long history: throughput and latency with a million old payments in the database
// beside an empty one, and the memory of one server after many payments. It prints and asserts
// nothing.

import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import type { Chain } from '../../../src/demo/chains'
import { prepareMachine } from '../machine'
import * as Report from '../Report'
import { type Candidate, candidates, type Load, loads } from './candidates'
import { fill, forget } from './history'
import { pay } from './load'
import { network } from './network'
import { credentials, mint, payers } from './payers'
import { type Sample, sampleOn, withStage } from './sample'
import * as Tables from './tables'

const { values } = parseArgs({
  options: {
    history: { type: 'string', default: '1000000' },
    rounds: { type: 'string', default: '5' },
    first: { type: 'string', default: '10000' },
    last: { type: 'string', default: '100000' },
  },
})
const history = Number(values.history)
const machine = prepareMachine()
const [ours, load] = [candidates[0], loads.find(({ name }) => name === '32 payers')]
if (ours === undefined || load === undefined) throw new Error('nothing to measure')

const rows = [...(await compareHistories(ours, load)), await measureMemory(ours, load)]
const { repeated, kept } = machine.disturbances()
process.stdout.write(`
${Report.format(rows).join('\n')}

Bun ${Bun.version}, ${machine.description}. ${load.payers} payers, ${load.each} payments each; ratios
are full / empty within a round, median [min..max].
Samples disturbed by others: ${repeated} dropped and measured again, ${kept} kept nevertheless.
`)

async function compareHistories(ours: Candidate, load: Load): Promise<Report.Row[]> {
  const directory = mkdtempSync(join(tmpdir(), 'turnpike-bench-'))
  try {
    const full = join(directory, 'full')
    process.stderr.write(`bench:growth: writing ${history} old payments ...\n`)
    fill(full, history)
    const samples: Record<'full' | 'empty', Sample[]> = { full: [], empty: [] }
    for (let round = 0; round < Number(values.rounds); round++) {
      const names = ['full', 'empty'] as const
      for (const name of round % 2 === 0 ? names : names.toReversed()) {
        process.stderr.write(`bench:growth: round ${round + 1}, ${name} ...\n`)
        const dataDir = name === 'full' ? full : join(directory, `empty-${round}`)
        const take = async () => {
          if (name === 'full') forget(full)
          else rmSync(dataDir, { recursive: true, force: true })
          const candidate = { ...ours, args: [dataDir] }
          return withStage(machine, { candidate, load, rpcOf: pastOld }, (stage) =>
            sampleOn(machine, stage),
          )
        }
        samples[name].push(await machine.sample(take))
      }
    }
    const compare = (what: string, value: (sample: Sample) => number, unit: string) => ({
      what,
      against: 'an empty database',
      ours: samples.full.map(value),
      theirs: samples.empty.map(value),
      format: (each: number) => `${each.toFixed(unit === '/s' ? 0 : 1)}${unit}`,
    })
    return [
      Report.compare({
        ...compare(`payments with ${history} old ones`, Tables.perSecond, '/s'),
        bound: { atLeast: 0.9 },
      }),
      Report.compare({
        ...compare('their p99', (sample) => Tables.latency(sample, 0.99), ' ms'),
        bound: { atMost: 1.1 },
      }),
      Report.compare(compare('their server CPU', ({ cpuMs }) => cpuMs, ' ms')),
    ]
  } finally {
    rmSync(directory, { recursive: true, force: true })
  }
}

/** The old payments are in block 1, far below what a reorganisation could reach. */
async function pastOld(chain: Chain): Promise<string> {
  await chain.rpc('anvil_mine', ['0x80'])
  return chain.url
}

async function measureMemory(ours: Candidate, load: Load): Promise<Report.Row> {
  const holders = payers(load.payers)
  const each = 32
  const resident = new Map<number, number>()
  const [first, last] = [Number(values.first), Number(values.last)]
  const idle = { ...load, each: 0, warmUp: 0 }
  await withStage(machine, { candidate: ours, load: idle }, async ({ chain, server }) => {
    let paid = 0
    while (paid < last) {
      // Challenges expire, so they are answered soon after they are made.
      const lists = await credentials(
        { url: server.url, protocol: ours.protocol, network: network() },
        holders,
        each,
      )
      const run = await pay(server.url, lists)
      if (run.paid < run.tried) {
        const faults = [...run.faults].map(([fault, times]) => `${times} times ${fault}`)
        throw new Error(`payments failed after ${paid}: ${faults.join(', ')}`)
      }
      for (const mark of [first, last])
        if (paid < mark && paid + run.paid >= mark)
          resident.set(mark, residentMegabytes(server.pid))
      paid += run.paid
      if (paid % 10_240 === 0) {
        process.stderr.write(`bench:growth: ${paid} payments ...\n`)
        await mint(chain, network(), holders)
      }
    }
  })
  const [before, after] = [resident.get(first) ?? Number.NaN, resident.get(last) ?? Number.NaN]
  return {
    what: `RSS after ${last} payments`,
    against: `after ${first}`,
    ratio: undefined,
    target: '<= +20 MB',
    met: after <= before + 20,
    ours: `${after.toFixed(0)} MB`,
    theirs: `${before.toFixed(0)} MB`,
  }
}

/** proc_pid_status(5). */
function residentMegabytes(pid: number): number {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  return Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1]) / 1024
}
