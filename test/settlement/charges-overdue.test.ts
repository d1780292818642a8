import { expect, test } from 'bun:test'
import type { Authorization } from '../../db/Authorization'
import { account } from '../../src/demo/accounts'
import { createRelayer } from '../../src/settlement/state/state'
import { createOverdue } from '../../src/settlement/upto/charges'
import { authorizationOf } from '../harness/authorizations'
import { networkOf, relayerKey } from '../harness/settlement'

const network = networkOf('http://127.0.0.1', 'usdc')

/** A process that has the relayer, or another one that has the duties of the network. */
function start(isHeld: boolean) {
  const clock = { ms: 0 }
  const logged: unknown[] = []
  const relayer = { ...createRelayer(relayerKey, { isReserved: false, isHeld }), next: 1, open: 2 }
  const chain = { network, relayers: [relayer], health: { reason: undefined } }
  const context = {
    ledger: {
      lanes: {
        isShared: true,
        has: ({ relayer: of }: { relayer?: string }) => of === undefined,
        isOfAnother: () => false,
      },
    },
    chains: new Map([[network.id, chain]]),
    progress: { charging: new Map() },
    monotonic: () => clock.ms,
    log: (event: string, { reason }: { reason?: unknown }) => void logged.push([event, reason]),
  }
  const report = createOverdue(context as unknown as Parameters<typeof createOverdue>[0])
  return { relayer, clock, logged, report }
}

const open = (changes: Partial<Authorization> = {}) => {
  const authorization = authorizationOf({ state: 'metered', ...changes })
  const upto = { ceilingAtomic: 600n, facilitator: account(0).address }
  return { ...authorization, transfer: { ...authorization.transfer, network: network.id, upto } }
}

test('a charge that waits is logged after half a minute and again, with what it waits for', () => {
  const { report, clock, logged, relayer } = start(true)
  const [waiting, made, failed] = [open(), open({ state: 'authorized' }), open({ failedAt: 1 })]
  const lookAt = (ms: number, ...more: Authorization[]) => {
    clock.ms = ms
    report([waiting, made, failed, ...more])
  }
  lookAt(0)
  lookAt(29_999)
  expect(logged).toEqual([])
  lookAt(30_000, open())
  relayer.stuck = 'a transaction stays out at the fee cap'
  lookAt(59_999)
  expect(logged.splice(0)).toEqual([['charge-waiting', '2 transactions of its account are open']])
  lookAt(60_000)
  expect(logged).toEqual([['charge-waiting', 'a transaction stays out at the fee cap']])
  clock.ms = 90_000
  report([])
  expect(logged).toHaveLength(1)
})

test('a charge whose account no process has is logged by the keeper of the network', () => {
  const { report, clock, logged } = start(false)
  const waiting = open()
  report([waiting])
  clock.ms = 30_000
  report([waiting])
  expect(logged).toEqual([['charge-waiting', 'no process has its account']])
})
