import { expect, test } from 'bun:test'
import { encodeFunctionData, parseAbi } from 'viem'
import { account } from '../../src/demo/accounts'
import { execute } from '../../src/demo/chains'
import { deploy } from '../harness/chains'
import { isSend, type OwnSettlement, ownSettlement } from '../harness/own-settlement'
import { type RpcCall, signTransfer, until } from '../harness/settlement'
import * as Wallets from '../harness/wallets'

// A chain whose newest block is a minute old, as on a chain with blocks for transactions only.

const quietSeconds = 60

/** No block for a minute; the next block has the time of our clock. */
async function ownQuietSettlement(): Promise<OwnSettlement> {
  const own = await ownSettlement()
  const { chain } = own.net
  // A wallet needs a deployed block; here it is an earlier one.
  const wallet = await deploy(chain, Wallets.SmartWallet, [account(1).address])
  const abi = parseAbi(['function mint(address to, uint256 value)'])
  const data = encodeFunctionData({ abi, functionName: 'mint', args: [wallet, 1_000_000n] })
  await execute(chain, [{ from: account(9).address, to: own.network.asset.address, data }])
  wallets.set(own, wallet)
  await chain.rpc('evm_increaseTime', [quietSeconds])
  await own.reopen({}, { now })
  return own
}

const wallets = new WeakMap<OwnSettlement, `0x${string}`>()
const now = () => Date.now() + quietSeconds * 1000
const seconds = () => BigInt(Math.floor(now() / 1000))

type Options = NonNullable<Parameters<typeof signTransfer>[1]>

/** Signed a moment ago, later than the newest block. */
const young = ({ network }: OwnSettlement, options: Options = {}) =>
  signTransfer(network, {
    validAfter: seconds() - 5n,
    validBefore: seconds() + 300n,
    ...options,
  })

const nodes = {
  refusing: ({ params }: RpcCall) =>
    params.length > 2 ? { error: { code: -32602, message: 'too many arguments' } } : undefined,
  ignoring: async ({ method, params }: RpcCall, url: string) => {
    if (method !== 'eth_call' || params.length < 3) return undefined
    const body = { jsonrpc: '2.0', id: 1, method, params: params.slice(0, 2) }
    const headers = { 'content-type': 'application/json' }
    const response = await fetch(url, { method: 'POST', headers, body: JSON.stringify(body) })
    const { result } = (await response.json()) as { result: string }
    return { result }
  },
}

const calls = ({ net }: OwnSettlement) =>
  net.tap.calls.filter(({ method }) => method === 'eth_call' || isSend(method)).length

test.concurrent('a payment that is younger than the newest block takes two calls', async () => {
  await using own = await ownQuietSettlement()
  for (const method of ['eip3009', 'permit2'] as const) {
    own.net.tap.calls.length = 0
    expect((await own.fixture.pay(young(own, { method }))).kind).toBe('confirmed')
    expect(calls(own)).toBe(2)
    await own.net.chain.rpc('evm_increaseTime', [1])
  }
})

test.concurrent('a payment that is younger than the newest block can be verified, and a wallet and a batch pay, too', async () => {
  await using own = await ownQuietSettlement()
  expect(await own.fixture.settlement.verify(young(own))).toEqual({ ok: true })
  const payer = wallets.get(own)
  if (!payer) throw new Error('no wallet')
  expect(await own.fixture.settlement.verify(young(own, { payer }))).toEqual({ ok: true })
  const transfers = [1n, 2n, 3n, 4n].map((amountAtomic) => young(own, { amountAtomic }))
  const outcomes = await Promise.all(transfers.map((each) => own.fixture.pay(each)))
  expect(outcomes.map(({ kind }) => kind)).toEqual(Array(4).fill('confirmed'))
  expect((await own.fixture.pay(young(own, { payer }))).kind).toBe('confirmed')
})

test.concurrent('error: an authorization that is not valid yet by our clock is refused', async () => {
  await using own = await ownQuietSettlement()
  const reason = 'invalid_exact_evm_payload_authorization_valid_after'
  const early = young(own, { validAfter: seconds() + 60n })
  expect(await own.fixture.pay(early)).toMatchObject({ kind: 'refused', reason })
  expect(await own.fixture.settlement.verify(early)).toMatchObject({ kind: 'refused', reason })
})

test.concurrent('error: where blocks are not rare and our clock is ahead, nothing is sent', async () => {
  await using own = await ownSettlement()
  await own.fixture.stop()
  await own.net.chain.rpc('anvil_mine', ['0x1'])
  const block = await own.net.chain.rpc('eth_getBlockByNumber', ['latest', false])
  const { timestamp } = block as { timestamp: string }
  // It stands still, so that the block does not become old on a busy machine.
  const at = (Number(timestamp) + 5) * 1000
  await own.open({}, { now: () => at })
  const validAfter = BigInt(timestamp) + 4n
  const outcome = await own.fixture.pay(signTransfer(own.network, { validAfter }))
  expect(outcome).toMatchObject({ kind: 'refused' })
  expect(own.fixture.sql.query('SELECT hash FROM transactions').all()).toEqual([])
})

test.concurrent("error: a clock that is proven to be ahead does not override the block's time", async () => {
  const ahead = () => Date.now() + 30_000
  await using own = await ownSettlement({ settlement: { now: ahead } })
  // New blocks prove it.
  await until(async () => {
    await own.net.chain.rpc('anvil_mine', ['0x1'])
    return (own.fixture.settlement.status()[0]?.clockAheadMs.min ?? 0) > 20_000
  })
  const validAfter = BigInt(Math.floor(ahead() / 1000) - 5)
  const outcome = await own.fixture.pay(signTransfer(own.network, { validAfter }))
  expect(outcome).toMatchObject({ kind: 'refused' })
  expect(own.fixture.sql.query('SELECT hash FROM transactions').all()).toEqual([])
})

for (const [name, intercept] of Object.entries(nodes))
  test.concurrent(`a node ${name} block overrides is tried once, and payers with a key still pay`, async () => {
    await using own = await ownQuietSettlement()
    own.net.tap.intercept = (call) => intercept(call, own.net.chain.url)
    const overrides = () => own.net.tap.calls.filter(({ params }) => params.length > 2).length
    for (const method of ['eip3009', 'permit2'] as const) {
      expect(await own.fixture.settlement.verify(young(own, { method }))).toEqual({ ok: true })
      expect(overrides()).toBe(1)
    }
    // A payment that needs the next block is not sent.
    const payer = wallets.get(own)
    if (!payer) throw new Error('no wallet')
    expect(await own.fixture.pay(young(own, { payer }))).toMatchObject({ kind: 'unavailable' })
    const poor = young(own, { amountAtomic: 10n ** 15n })
    expect(await own.fixture.pay(poor)).toMatchObject({ kind: 'refused' })
    const forged = { ...young(own), payer: account(2).address }
    expect(await own.fixture.pay(forged)).toMatchObject({ kind: 'refused' })
    expect(await own.fixture.settlement.verify(forged)).toMatchObject({ kind: 'refused' })
    expect((await own.fixture.pay(young(own))).kind).toBe('confirmed')
    expect(overrides()).toBe(1)
  })
