import { evm, Mppx } from 'mppx/client'
import { account } from '../../src/demo/accounts'
import type { Chain } from '../../src/demo/chains'
import { startChains } from '../harness/chains'
import type { Machine } from './machine'
import * as Report from './Report'
import { startCountingRpc } from './rpc'
import * as Stats from './Stats'
import { rpcUrlsOf, shippedConfig } from './shipped'

const rounds = 5
const warmUp = 32
const payments = 128
const measuredPayments = 64
const path = '/m/catjoke/joke'
const base = 'eip155:8453'

type Candidate = 'ours' | 'polling' | 'sync'

/**
 * One payer, one payment after the other, on a fresh automining chain per sample: the latency of a
 * request whose credential was signed beforehand.
 */
export async function benchPaid(
  machine: Machine,
): Promise<{ rows: Report.Row[]; notes: string[] }> {
  const medians: Record<Candidate, number[]> = { ours: [], polling: [], sync: [] }
  const order: Candidate[] = ['ours', 'polling', 'sync']
  for (let round = 0; round < rounds; round++) {
    for (const candidate of round % 2 === 0 ? order : order.toReversed()) {
      const times = await machine.sample(() => payAll(machine, candidate))
      medians[candidate].push(Stats.median(times))
    }
  }
  const compare = (against: string, theirs: Candidate) =>
    Report.compare({
      what: `paid GET ${path}`,
      against,
      ours: medians.ours,
      theirs: medians[theirs],
      bound: { atMost: 1 },
      format: (value) => `${value.toFixed(2)} ms`,
    })
  const { perPayment, methods } = await countCalls(machine)
  const calls: Report.Row = {
    what: 'JSON-RPC calls per payment',
    against: '',
    ratio: undefined,
    ...Report.evaluate(perPayment, { atMost: 3 }),
    ours: perPayment.toFixed(2),
    theirs: '',
  }
  return {
    rows: [
      compare('mppx/elysia, nonceManager, 50 ms polling', 'polling'),
      compare('mppx/elysia, nonceManager, writeContractSync', 'sync'),
      calls,
    ],
    notes: [
      `paid: ${rounds} rounds of ${payments} MPP authorizations after ${warmUp} to warm up, one payer, fresh anvil each; medians`,
      'paid: ours keeps the payment on disk before it is sent, mppx keeps nothing; both answer a joke of their own',
      `paid: calls per payment over ${measuredPayments}: ${methods}`,
    ],
  }
}

/** Milliseconds of each payment. */
async function payAll(machine: Machine, candidate: Candidate): Promise<number[]> {
  const networks = shippedConfig().networks.filter(({ id }) => candidate === 'ours' || id === base)
  const chains = await startChains(networks)
  try {
    const urls = rpcUrlsOf(chains)
    const server = await (candidate === 'ours'
      ? machine.serve('ours.ts', [JSON.stringify(urls)])
      : machine.serve('mppx-elysia.ts', [urls[base] ?? '', candidate]))
    try {
      const credentials = await sign(server.url, warmUp + payments)
      const times: number[] = []
      for (const credential of credentials) times.push(await pay(server.url, credential))
      return times.slice(warmUp)
    } finally {
      await server.stop()
    }
  } finally {
    await stopAll(chains)
  }
}

async function countCalls(machine: Machine): Promise<{ perPayment: number; methods: string }> {
  const chains = await startChains(shippedConfig().networks)
  const urls = rpcUrlsOf(chains)
  const rpc = startCountingRpc(urls[base] ?? '')
  try {
    const server = await machine.serve('ours.ts', [JSON.stringify({ ...urls, [base]: rpc.url })])
    try {
      const credentials = await sign(server.url, 8 + measuredPayments)
      for (const credential of credentials.slice(0, 8)) await pay(server.url, credential)
      rpc.reset()
      for (const credential of credentials.slice(8)) await pay(server.url, credential)
      const counts = [...rpc.counts].toSorted(([, a], [, b]) => b - a)
      const total = counts.reduce((sum, [, count]) => sum + count, 0)
      return {
        perPayment: total / measuredPayments,
        methods: counts.map(([method, count]) => `${method} ${count}`).join(', '),
      }
    } finally {
      await server.stop()
    }
  } finally {
    await rpc.stop()
    await stopAll(chains)
  }
}

/** Different credentials for as many challenges, by the stock client. */
async function sign(url: string, count: number): Promise<string[]> {
  const client = Mppx.create({
    methods: [evm({ account: account(1).local(), currencies: [evm.assets.base.USDC] })],
    polyfill: false,
  })
  // mppx repeats challenges within a millisecond: such a credential would pay nothing.
  const credentials = new Set<string>()
  while (credentials.size < count) {
    const challenge = await fetch(url + path)
    credentials.add(await client.createCredential(challenge))
  }
  return [...credentials]
}

async function pay(url: string, credential: string): Promise<number> {
  const startedAt = performance.now()
  const answer = await fetch(url + path, { headers: { authorization: credential } })
  const text = await answer.text()
  const time = performance.now() - startedAt
  if (answer.status !== 200 || !answer.headers.has('payment-receipt'))
    throw new Error(`the payment was answered with ${answer.status}: ${text}`)
  return time
}

async function stopAll(chains: readonly Chain[]): Promise<void> {
  await Promise.all(chains.map((chain) => chain.stop()))
}
