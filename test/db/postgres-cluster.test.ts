import { describe, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import * as Crypto from '../../src/protocol/Crypto'
import type { Settlement } from '../../src/settlement/settlement'
import { startGateway, type TestGateway } from '../harness/gateway-pair'
import { gatewayDatabase, hasPostgres } from '../harness/postgres'
import { type Scripted, scripted } from '../harness/scripted'
import { purposeOf, relayerKey, until } from '../harness/settlement'

const keys = [relayerKey, Crypto.bytes(account(5).privateKey)]

type Process = TestGateway & { settlement: Settlement }

/** Processes over one database and one chain. */
async function cluster(relayers = 1) {
  const chain = await scripted()
  const url = await gatewayDatabase()
  const all: Process[] = []
  return {
    chain,
    async start(): Promise<Process> {
      const gateway = await startGateway(url, { now: () => chain.clock.ms })
      const { ledger } = gateway
      const settlement = await chain.start({ ledger, relayerKeys: keys.slice(0, relayers) })
      await settlement.recover()
      const process = { ...gateway, settlement }
      all.push(process)
      return process
    },
    /** Ends the connections, then the settlement: as little of it as possible runs on. */
    async kill(process: Process) {
      await process.die()
      await process.settlement.stop(0)
    },
    async [Symbol.asyncDispose]() {
      for (const process of all) {
        await process.settlement.stop(0)
        await process.leave()
      }
      await chain[Symbol.asyncDispose]()
    },
  }
}

const settle = (
  { settlement }: Process,
  { clock }: Scripted,
  transfer: ReturnType<Scripted['sign']>,
) =>
  settlement.settle(
    { transfer, purpose: purposeOf(), receivedAt: clock.ms, isKeySigned: () => true },
    20_000,
  )

const heldBy = (process: Process) =>
  process.sql<{ relayer: string; epoch: number }>(
    'SELECT relayer, epoch FROM lanes WHERE holder = $1 ORDER BY relayer',
    [process.id],
  )

const sentRows = (process: Process) =>
  process.sql<{ nonce: number; state: string }>(
    'SELECT nonce, state FROM transactions ORDER BY nonce, seq',
  )

const isSelling = ({ settlement }: Process, { network }: Scripted) => settlement.isReady(network.id)

describe.skipIf(!hasPostgres)('gateways over one database', () => {
  test('the first gateway has all lanes, and a second one is a standby until the first leaves', async () => {
    await using own = await cluster()
    const first = await own.start()
    const second = await own.start()
    expect(await heldBy(first)).toHaveLength(2)
    expect([isSelling(first, own.chain), isSelling(second, own.chain)]).toEqual([true, false])
    const paid = own.chain.sign()
    expect((await settle(first, own.chain, paid)).kind).toBe('confirmed')
    // The other gateway finds it.
    expect((await settle(second, own.chain, paid)).kind).toBe('confirmed')
    await first.settlement.stop(0)
    await first.leave()
    await until(() => isSelling(second, own.chain))
    // It takes them one by one, and sells from the first on.
    await until(async () => (await heldBy(second)).length === 2)
    expect(await heldBy(second)).toMatchObject([{ epoch: 2 }, { epoch: 2 }])
    expect((await settle(second, own.chain, own.chain.sign({ from: 2 }))).kind).toBe('confirmed')
    expect(await sentRows(second)).toMatchObject([{ nonce: 0 }, { nonce: 1 }])
    expect([first.fenced, second.fenced, second.reaped]).toEqual([[], [], []])
  })

  test('with two accounts each gateway gets one, and both sell', async () => {
    await using own = await cluster(2)
    const first = await own.start()
    const second = await own.start()
    await until(() => isSelling(second, own.chain))
    expect(isSelling(first, own.chain)).toBe(true)
    const accounts = async (process: Process) =>
      (await heldBy(process)).filter(({ relayer }) => relayer !== 'keeper')
    expect([await accounts(first), await accounts(second)]).toMatchObject([[{}], [{}]])
    const both = await Promise.all([
      settle(first, own.chain, own.chain.sign()),
      settle(second, own.chain, own.chain.sign({ from: 2 })),
    ])
    expect(both.map(({ kind }) => kind)).toEqual(['confirmed', 'confirmed'])
    expect(await sentRows(first)).toMatchObject([{ nonce: 0 }, { nonce: 0 }])
  })

  test('one credential at two gateways at once is one payment', async () => {
    await using own = await cluster(2)
    const first = await own.start()
    const second = await own.start()
    await until(() => isSelling(second, own.chain))
    for (let round = 0; round < 5; round++) {
      const transfer = own.chain.sign({ from: 1 + round })
      const both = await Promise.all([
        settle(first, own.chain, transfer),
        settle(second, own.chain, transfer),
      ])
      expect(both.map(({ kind }) => kind)).toEqual(['confirmed', 'confirmed'])
    }
    const [count] = await first.sql<{ payments: number; members: number }>(
      `SELECT (SELECT count(*) FROM payments) AS payments,
         (SELECT count(*) FROM transaction_members) AS members`,
    )
    expect(count).toEqual({ payments: 5, members: 5 })
  })

  test('the transactions of a dead gateway are taken over and driven to their end', async () => {
    await using own = await cluster()
    const first = await own.start()
    const second = await own.start()
    own.chain.node.onSend = () => 'lose'
    const lost = own.chain.sign()
    settle(first, own.chain, lost).catch(() => undefined)
    await until(() => own.chain.node.sends.length > 0)
    await own.kill(first)
    own.chain.node.onSend = () => 'include'
    await until(async () => (await second.settlement.find(lost))?.state === 'confirmed')
    expect(second.reaped).toEqual([first.id])
    expect((await settle(second, own.chain, own.chain.sign({ from: 2 }))).kind).toBe('confirmed')
    expect(await sentRows(second)).toMatchObject([
      { nonce: 0, state: 'mined' },
      { nonce: 1, state: 'mined' },
    ])
  })

  test('error: a gateway that was taken for dead writes nothing more, and ends', async () => {
    await using own = await cluster()
    const first = await own.start()
    const second = await own.start()
    // The others remove it, as they do after a long pause.
    await second.sql('DELETE FROM gateways WHERE id = $1', [first.id])
    await until(() => isSelling(second, own.chain))
    const sends = own.chain.node.sends.length
    const outcome = await settle(first, own.chain, own.chain.sign())
    expect(outcome.kind).toBe('unavailable')
    await until(() => first.fenced.length > 0)
    expect(own.chain.node.sends.length).toBe(sends)
    expect(await sentRows(second)).toEqual([])
    expect(isSelling(second, own.chain)).toBe(true)
  })
})
