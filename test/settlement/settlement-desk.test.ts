import { describe, expect, test } from 'bun:test'
import { account } from '../../src/demo/accounts'
import { mine } from '../../src/demo/chains'
import * as Crypto from '../../src/protocol/Crypto'
import { setAutomine } from '../harness/chains'
import { ownJobs } from '../harness/jobs'
import { outcomeOf } from '../harness/outcome'
import { isSend } from '../harness/own-settlement'
import { mineWhile, signTransfer, until } from '../harness/settlement'

const deskKey = Crypto.bytes(account(5).privateKey)

/** A desk with a second account, which has gas. */
async function ownDeskRelayer() {
  const own = await ownJobs()
  await own.net.chain.rpc('anvil_setBalance', [account(5).address, '0xde0b6b3a7640000'])
  return own
}

describe.concurrent('the relayers', () => {
  test('the desk has a relayer of its own, which sends no payment', async () => {
    await using own = await ownDeskRelayer()
    const { net, network } = own
    await own.reopen({}, { deskKey })
    expect(own.fixture.settlement.desk).toBe(account(5).address)
    expect(own.fixture.settlement.status()[0]?.relayers.map(({ relayer }) => relayer)).toEqual([
      account(0).address,
      account(5).address,
    ])
    await setAutomine(net.chain, false)
    const paying = Array.from({ length: 6 }, () => own.fixture.pay(signTransfer(network)))
    const running = own.run({ relayer: own.fixture.settlement.desk })
    const free = own.run({ id: 'grant:1', kind: 'grant', product: 'gateway' })
    await until(() => own.transactions().length >= 3)
    await mineWhile(net.chain, Promise.all([...paying, running, free]))
    const fromDesk = own.transactions().filter(({ relayer }) => relayer === account(5).address)
    expect(fromDesk.map(({ kind }) => kind)).toEqual(['refund'])
  })

  test('a desk without gas accepts nothing new, and payments continue', async () => {
    await using own = await ownDeskRelayer()
    const { net, network } = own
    await net.chain.rpc('anvil_setBalance', [account(5).address, '0x1'])
    await own.reopen({}, { deskKey })
    expect(own.fixture.settlement.isReady(network.id)).toBe(true)
    expect(await own.run({ relayer: own.fixture.settlement.desk })).toMatchObject({
      kind: 'unavailable',
    })
    expect(own.transactions()).toEqual([])
    expect((await own.fixture.pay(signTransfer(network))).kind).toBe('confirmed')
  })

  test('without working relayers the desk still works', async () => {
    await using own = await ownDeskRelayer()
    const { net, network } = own
    await net.chain.rpc('anvil_setBalance', [account(0).address, '0x1'])
    await own.reopen({}, { deskKey })
    expect(own.fixture.settlement.isReady(network.id)).toBe(false)
    expect((await own.fixture.pay(signTransfer(network))).kind).toBe('unavailable')
    expect((await own.run({ relayer: own.fixture.settlement.desk })).kind).toBe('confirmed')
  })

  test('the desk is the first relayer by default', async () => {
    await using own = await ownDeskRelayer()
    await own.reopen({}, { deskKey: Crypto.bytes(account(0).privateKey) })
    expect(own.fixture.settlement.desk).toBe(account(0).address)
    expect(own.fixture.settlement.status()[0]?.relayers).toHaveLength(1)
    expect((await own.run({ relayer: own.fixture.settlement.desk })).kind).toBe('confirmed')
  })

  test('error: a job for an account without a relayer is an error at once', async () => {
    await using own = await ownDeskRelayer()
    expect(await outcomeOf(own.run({ relayer: account(8).address }))).toThrow('is no relayer')
    expect(own.transactions()).toEqual([])
  })

  test('a written job continues when its relayer pauses', async () => {
    await using own = await ownDeskRelayer()
    const { net, network } = own
    net.tap.intercept = ({ method }) =>
      isSend(method)
        ? { error: { code: -32000, message: 'insufficient funds for gas * price + value' } }
        : undefined
    expect((await own.run({}, 100)).kind).toBe('pending')
    await until(() => !own.fixture.settlement.isReady(network.id))
    expect((await own.run({ id: 'refund:2' }, 100)).kind).toBe('unavailable')
    net.tap.intercept = undefined
    await until(async () => (await own.stateOf()) === 'confirmed')
    expect(await own.fixture.settlement.job('refund:2')).toBeUndefined()
    expect(await own.moved()).toBe(7n)
  })

  test('a job waits for room in a full relayer, and is not written after its time limit', async () => {
    await using own = await ownDeskRelayer()
    const { net } = own
    await setAutomine(net.chain, false)
    const ids = Array.from({ length: 16 }, (_, index) => `refund:${index}`)
    for (const id of ids) void own.run({ id }, 120_000).catch(() => undefined)
    await until(() => own.transactions().length === 16)
    expect(await own.run({ id: 'late' }, 50)).toMatchObject({ kind: 'unavailable' })
    expect(await own.fixture.settlement.job('late')).toBeUndefined()
    const waiting = [own.run({ id: 'next' }), own.run({ id: 'next' })]
    await until(async () => {
      await mine(net.chain)
      return (await own.stateOf('next')) === 'confirmed'
    })
    expect((await Promise.all(waiting)).map(({ kind }) => kind)).toEqual(['confirmed', 'confirmed'])
    expect(own.transactions()).toHaveLength(17)
    expect(await own.moved()).toBe(7n * 17n)
  })
})

describe.concurrent('the gas budget', () => {
  const gasPerDayWei = {
    gateway: 10n ** 18n,
    facilitator: 0n,
    desk: 0n,
    sponsor: 100_000n * 10n ** 10n,
    channels: 0n,
  }

  test('a spent budget stops grants, never swaps and refunds', async () => {
    await using own = await ownJobs()
    await own.reopen({ gasPerDayWei })
    expect(await own.run({ id: 'grant', kind: 'grant' })).toMatchObject({
      kind: 'unavailable',
      detail: 'The gas budget of today is spent; it starts again at 0:00 UTC.',
    })
    expect(own.transactions()).toEqual([])
    for (const kind of ['swap', 'allowance', 'refund'] as const)
      expect((await own.run({ id: kind, kind })).kind).toBe('confirmed')
  })

  test('the budget counts the value of grants, and jobs in progress', async () => {
    await using own = await ownJobs()
    const { net } = own
    const grant = { kind: 'grant', product: 'sponsor', valueWei: 10n ** 15n } as const
    await own.reopen({ gasPerDayWei })
    await setAutomine(net.chain, false)
    expect((await own.run({ ...grant, id: 'grant:1' }, 20)).kind).toBe('pending')
    expect((await own.run({ ...grant, id: 'grant:2' }, 20)).kind).toBe('unavailable')
    await until(async () => {
      await mine(net.chain)
      return (await own.stateOf('grant:1')) === 'confirmed'
    })
    expect((await own.run({ ...grant, id: 'grant:2' }, 20)).kind).toBe('unavailable')
    expect(await own.moved()).toBe(10n ** 15n)
  })
})
