import { describe, expect, test } from 'bun:test'
import type { Hex } from 'viem'
import { account } from '../../src/demo/accounts'
import { execute, mine } from '../../src/demo/chains'
import * as Transfer from '../../src/protocol/Transfer'
import { isSend, type OwnSettlement, ownSettlement, withoutSync } from '../harness/own-settlement'
import { type RpcCall, signTransfer, startFixture, temporary, until } from '../harness/settlement'

// External settlements, and nodes that hide the receipts of our transactions.

/** Settled by account 8. */
async function settleByOther({ net }: OwnSettlement, transfer: Transfer.Transfer): Promise<string> {
  const call = { from: account(8).address, ...Transfer.call(transfer), gas: 500_000n }
  const [receipt] = await execute(net.chain, [call])
  return receipt?.transactionHash ?? ''
}

/** Settles the payment externally before our first transaction. */
function preempt(own: OwnSettlement, transfer: Transfer.Transfer): { hash: Promise<string> } {
  const { promise, resolve } = Promise.withResolvers<string>()
  let isFirst = true
  own.net.tap.intercept = async ({ method }) => {
    if (!isSend(method) || !isFirst) return undefined
    isFirst = false
    resolve(await settleByOther(own, transfer))
    return undefined
  }
  return { hash: promise }
}

type RpcReceipt = { transactionHash: Hex; blockNumber: Hex; logs: { logIndex: Hex }[] }

/** A clock that can be set. */
function clock() {
  const set = { aheadMs: 0, now: () => Date.now() + set.aheadMs }
  return set
}

/** Blocks are mined, and the health checks see them when they are new. */
async function watchBlocks({ net, asked }: OwnSettlement): Promise<void> {
  for (let round = 0; round < 3; round++) {
    const looks = asked('eth_chainId')
    await mine(net.chain)
    await until(() => asked('eth_chainId') > looks + 1)
  }
}

const limits: readonly (readonly [name: string, code: number, message: string, blocks: bigint])[] =
  [
    ['-32602', -32602, 'query exceeds max block range 200', 200n],
    ['-32000', -32000, 'block range is too wide', 120n],
    ['the code of rate limits', -32005, 'query returned more than 10000 results', 60n],
    ['-32614', -32614, 'eth_getLogs is limited to a 40 block range', 40n],
  ]

/** A node that hides receipts and logs, and shows our account nonce as used. */
const hiding = (call: RpcCall) => {
  if (call.method === 'eth_getTransactionReceipt') return { result: null }
  if (call.method === 'eth_getLogs') return { result: [] }
  return withoutSync(call)
}

/** A hundred blocks later: the pause between polls follows the time of a block. */
async function pass(own: OwnSettlement, seconds: number): Promise<void> {
  await own.net.chain.rpc('evm_increaseTime', [seconds])
  await mine(own.net.chain, 100)
}

const soon = () => BigInt(Math.floor(Date.now() / 1000) + 30)

/** The same answer with the time of the block an hour later. */
function late(result: string): string {
  const word = (second: number) => second.toString(16).padStart(64, '0')
  const now = Math.floor(Date.now() / 1000)
  const seconds = Array.from({ length: 240 }, (_, index) => now - 120 + index)
  const found = seconds.find((second) => result.includes(word(second)))
  return found === undefined ? result : result.replaceAll(word(found), word(found + 3_600))
}

describe.concurrent('a clock', () => {
  for (const method of ['eip3009', 'permit2'] as const)
    test(`with a clock that is ahead a preempted x402 payment is confirmed (${method})`, async () => {
      const time = clock()
      await using own = await ownSettlement({ settlement: { now: time.now, checkMs: 50 } })
      await watchBlocks(own)
      time.aheadMs = 20_000
      const transfer = signTransfer(own.network, { method })
      const { hash } = preempt(own, transfer)
      const outcome = await own.fixture.pay(transfer)
      expect(outcome).toMatchObject({ kind: 'confirmed', payment: { transaction: await hash } })
      expect(await own.paid()).toBe(5_000n)
    })

  test('a clock error of a minute pauses the network, an old block does not', async () => {
    const time = clock()
    const settlement = { now: time.now, checkMs: 50, clockSkewMaxMs: undefined }
    await using own = await ownSettlement({ settlement })
    const status = () => own.fixture.settlement.status()[0]
    await own.net.chain.rpc('evm_setNextBlockTimestamp', [Math.floor(Date.now() / 1000) + 2])
    await watchBlocks(own)
    expect(status()).toMatchObject({ ready: true })
    for (const [aheadMs, words] of [
      [100_000, / s ahead of /],
      [-100_000, / s behind /],
    ] as const) {
      time.aheadMs = aheadMs
      await until(() => status()?.ready === false)
      expect(status()?.reason).toMatch(words)
      const outcome = await own.fixture.pay(signTransfer(own.network))
      expect(outcome.kind).toBe('unavailable')
      time.aheadMs = 0
      await until(() => status()?.ready === true)
    }
    await own.net.chain.rpc('evm_increaseTime', [100])
    await mine(own.net.chain)
    await until(() => status()?.ready === false)
    expect(status()?.reason).toMatch(/the clock of this machine is \d+ s behind/)
  })

  test('a network whose newest block is old is still offered', async () => {
    const time = clock()
    await using own = await ownSettlement({ chain: { mineNothing: true } })
    // The newest block is an hour old when the service starts.
    time.aheadMs = 3_600_000
    await own.reopen({}, { now: time.now, clockSkewMaxMs: 60_000, checkMs: 50 })
    const looks = own.asked('eth_chainId')
    await until(() => own.asked('eth_chainId') > looks + 3)
    expect(own.fixture.settlement.status()[0]).toMatchObject({ ready: true })
  })
})

describe.concurrent('a credential', () => {
  test('attack: a restored database does not answer an MPP credential again', async () => {
    await using own = await ownSettlement()
    const directory = temporary()
    const transfers = (['eip3009', 'permit2'] as const).map((method) =>
      signTransfer(own.network, { method }),
    )
    for (const transfer of transfers)
      expect((await own.fixture.pay(transfer, { bound: true })).kind).toBe('confirmed')
    const other = await startFixture([own.network], directory.path)
    try {
      for (const transfer of transfers) {
        const again = await other.pay(transfer, { bound: true })
        expect(again).toMatchObject({ kind: 'refused', reason: expect.stringMatching(/nonce/) })
      }
      expect(await other.settlement.find(transfers[0] as Transfer.Transfer)).toBeUndefined()
    } finally {
      await other.stop()
      directory.remove()
    }
  })

  test('attack: a payment of this desk creates no second stock order after the loss of the database', async () => {
    await using own = await ownSettlement()
    const directory = temporary()
    const desk = own.fixture.settlement.desk
    const transfer = signTransfer(own.network, { payee: desk })
    expect((await own.fixture.pay(transfer, { product: 'desk' })).kind).toBe('confirmed')
    const other = await startFixture([own.network], directory.path)
    try {
      expect((await other.pay(transfer, { product: 'desk' })).kind).toBe('refused')
      expect(other.events.map(({ event }) => event)).toContain('settlement-without-record')
      const strangers = signTransfer(own.network, { payee: desk })
      await settleByOther(own, strangers)
      // The desk has the money: it accepts the order, and swaps or refunds.
      expect((await other.pay(strangers, { product: 'desk' })).kind).toBe('confirmed')
    } finally {
      await other.stop()
      directory.remove()
    }
  })

  test('an MPP credential that was presented while no node answered, and settled since, counts', async () => {
    await using own = await ownSettlement()
    const transfers = (['eip3009', 'permit2'] as const).map((method) =>
      signTransfer(own.network, { method }),
    )
    const before = signTransfer(own.network)
    await settleByOther(own, before)
    own.net.tap.intercept = ({ method }) =>
      method === 'eth_call' ? new Response('', { status: 503 }) : undefined
    for (const transfer of [...transfers, before])
      expect((await own.fixture.pay(transfer, { bound: true })).kind).toBe('unavailable')
    own.net.tap.intercept = undefined
    await own.net.chain.rpc('evm_increaseTime', [2])
    for (const transfer of transfers) {
      const transaction = await settleByOther(own, transfer)
      const outcome = await own.fixture.pay(transfer, { bound: true })
      expect(outcome).toMatchObject({ kind: 'confirmed', payment: { transaction } })
    }
    // It was settled before it was presented, so it may have bought something at another instance.
    expect((await own.fixture.pay(before, { bound: true })).kind).toBe('refused')
    const unbound = signTransfer(own.network)
    own.net.tap.intercept = ({ method }) =>
      method === 'eth_call' ? new Response('', { status: 503 }) : undefined
    expect((await own.fixture.pay(unbound)).kind).toBe('unavailable')
    own.net.tap.intercept = undefined
    await settleByOther(own, unbound)
    expect((await own.fixture.pay(unbound)).kind).toBe('refused')
  })

  for (const [whose, isOwn] of [
    ['a payout of this service', true],
    ['a stranger', false],
  ] as const)
    test(`a preempted facilitator payment to ${whose} ${isOwn ? 'succeeds' : 'names the transaction that paid'}`, async () => {
      await using own = await ownSettlement({ settlement: { isOwnPayee: () => isOwn } })
      const transfer = signTransfer(own.network)
      const { hash } = preempt(own, transfer)
      const outcome = await own.fixture.pay(transfer, { product: 'facilitator' })
      const transaction = await hash
      if (isOwn) expect(outcome).toMatchObject({ kind: 'confirmed', payment: { transaction } })
      else {
        expect(outcome).toMatchObject({
          kind: 'dead',
          reason: 'invalid_exact_evm_nonce_already_used',
          detail: expect.stringContaining(transaction),
        })
      }
    })
})

test('error: a payment that another look confirms during the search is confirmed, and not dead', async () => {
  await using own = await ownSettlement({ settlement: { payoutExclusive: true } })
  const transfer = signTransfer(own.network)
  const { hash } = preempt(own, transfer)
  const { intercept } = own.net.tap
  let isConfirmed = false
  own.net.tap.intercept = async (call, response) => {
    const { method, params } = call
    if (method === 'eth_getTransactionReceipt' && !isConfirmed && params[0] === (await hash)) {
      isConfirmed = true
      const { ledger, settlement } = own.fixture
      const payment = await settlement.find(transfer)
      const receipt = await own.net.chain.rpc('eth_getTransactionReceipt', [params[0]])
      const { transactionHash, blockNumber, logs } = receipt as RpcReceipt
      const logIndex = Number(logs.at(-1)?.logIndex)
      const paid = { transaction: transactionHash, logIndex, blockNumber: BigInt(blockNumber) }
      await ledger.settling.confirm(payment?.id ?? '', paid, Date.now())
    }
    return intercept?.(call, response)
  }
  const outcome = await own.fixture.pay(transfer)
  expect(isConfirmed).toBe(true)
  expect(outcome).toMatchObject({ kind: 'confirmed', payment: { transaction: await hash } })
})

describe.concurrent('logs', () => {
  for (const [name, code, message, blocks] of limits)
    test(`logs are found where a provider limits their range (${name}, ${blocks} blocks)`, async () => {
      await using own = await ownSettlement({
        // The height of a chain that has run for a while. Mining it would take 0.4 s.
        chain: { extraArgs: ['--number', '450'] },
        settlement: { payoutExclusive: true, checkMs: 50 },
      })
      const { net } = own
      let widest = 0n
      const limited = async ({ method, params }: RpcCall) => {
        if (method !== 'eth_getLogs') return undefined
        const [{ fromBlock, toBlock }] = params as [{ fromBlock: string; toBlock: string }]
        const last = toBlock === 'latest' ? await net.chain.rpc('eth_blockNumber', []) : toBlock
        const span = BigInt(last as string) - BigInt(fromBlock) + 1n
        if (span > blocks) return { error: { code, message } }
        widest = span > widest ? span : widest
        return undefined
      }
      const transfer = signTransfer(own.network)
      let hash = ''
      net.tap.intercept = async (call) => {
        if (isSend(call.method) && hash === '') hash = await settleByOther(own, transfer)
        return limited(call)
      }
      const outcome = await own.fixture.pay(transfer)
      expect(outcome).toMatchObject({ kind: 'confirmed', payment: { transaction: hash } })
      const before = signTransfer(own.network)
      const transaction = await settleByOther(own, before)
      const asked = own.asked('eth_getLogs')
      const settledExternally = await own.fixture.pay(before, { bound: true })
      expect(settledExternally).toMatchObject({ kind: 'confirmed', payment: { transaction } })
      // The span that worked is stored.
      expect(own.asked('eth_getLogs') - asked).toBeLessThan(4)
      expect(widest).toBeGreaterThan(0n)
    })

  test('error: a search ends after 64 calls, the payment is not refused, and a later search finds it', async () => {
    // Blocks of one search. The payment lies deeper than 64 of them.
    const limit = 4
    await using own = await ownSettlement({ settlement: { payoutExclusive: true } })
    const { net } = own
    const transfer = signTransfer(own.network)
    const transaction = await settleByOther(own, transfer)
    await mine(net.chain, 64 * limit + 20)
    net.tap.intercept = async ({ method, params }) => {
      if (method !== 'eth_getLogs') return undefined
      const [{ fromBlock, toBlock }] = params as [{ fromBlock: string; toBlock: string }]
      const last = toBlock === 'latest' ? await net.chain.rpc('eth_blockNumber', []) : toBlock
      if (BigInt(last as string) - BigInt(fromBlock) < limit) return undefined
      return { error: { code: -32602, message: `a limit of ${limit} blocks` } }
    }
    const outcome = await own.fixture.pay(transfer, { bound: true })
    expect(outcome.kind).toBe('unavailable')
    expect(own.asked('eth_getLogs')).toBe(64)
    // Without the limit the span grows from search to search.
    net.tap.intercept = undefined
    await until(async () => (await own.fixture.pay(transfer, { bound: true })).kind === 'confirmed')
    expect(await own.fixture.settlement.find(transfer)).toMatchObject({ transaction })
  })

  test('error: a node that refuses every range leaves the payment open after a few calls', async () => {
    await using own = await ownSettlement()
    const transfer = signTransfer(own.network)
    let hash = ''
    own.net.tap.intercept = async ({ method }) => {
      if (method === 'eth_getLogs') return { error: { code: -32601, message: 'no such method' } }
      if (isSend(method) && hash === '') hash = await settleByOther(own, transfer)
      return undefined
    }
    const outcome = await own.fixture.pay(transfer)
    expect(['pending', 'reverted']).toContain(outcome.kind)
    expect(own.asked('eth_getLogs')).toBeLessThan(20)
    own.net.tap.intercept = undefined
    expect((await own.fixture.pay(transfer)).kind).toBe('confirmed')
  })
})

describe.concurrent('a node that hides', () => {
  test('a receipt that one node hides is found at the other one before the payment ends', async () => {
    await using own = await ownSettlement({ settlement: { checkMs: 50, resendMs: 250 } })
    const { net } = own
    await own.reopen({ rpcUrls: [net.tap.url, net.chain.url] })
    net.tap.intercept = hiding
    const transfer = signTransfer(own.network, { validBefore: soon() })
    const paying = own.fixture.pay(transfer)
    await until(async () => (await own.fixture.settlement.find(transfer)) !== undefined)
    await until(async () => (await own.paid()) === 5_000n)
    await pass(own, 120)
    expect((await paying).kind).toBe('confirmed')
  })

  test('a receipt that every node hides keeps the payment open for a day', async () => {
    await using own = await ownSettlement({ settlement: { checkMs: 50, resendMs: 250 } })
    const { net, fixture } = own
    net.tap.intercept = hiding
    const transfer = signTransfer(own.network, { validBefore: soon() })
    // The wait ends after many polls.
    const paying = fixture.pay(transfer, {}, { waitMs: 50_000 })
    await until(async () => (await own.paid()) === 5_000n)
    await pass(own, 120)
    const outcome = await paying
    expect(outcome.kind).toBe('reverted')
    await pass(own, 80_000)
    const looks = own.asked('eth_chainId')
    await until(() => own.asked('eth_chainId') > looks + 3)
    expect((await fixture.settlement.find(transfer))?.state).toBe('reverted')
    net.tap.intercept = undefined
    // The same credential is answered.
    expect((await fixture.pay(transfer)).kind).toBe('confirmed')
    expect(await own.paid()).toBe(5_000n)
  })

  test('a payment whose receipt stays hidden ends as used after a day', async () => {
    await using own = await ownSettlement({ settlement: { checkMs: 50, resendMs: 250 } })
    const { net, fixture } = own
    net.tap.intercept = hiding
    const transfer = signTransfer(own.network, { validBefore: soon() })
    const paying = fixture.pay(transfer)
    await until(async () => (await own.paid()) === 5_000n)
    await pass(own, 90_000)
    await paying
    await until(async () => (await fixture.settlement.find(transfer))?.state === 'expired')
    expect((await fixture.settlement.find(transfer))?.nonceUsed).toBe(true)
  })

  test('a payment stays open when only one node reports its expiry', async () => {
    const time = clock()
    await using own = await ownSettlement({ settlement: { checkMs: 50, now: time.now } })
    const { net } = own
    await own.reopen({ rpcUrls: [net.tap.url, net.chain.url] }, { now: time.now, checkMs: 50 })
    const { fixture } = own
    // It withholds our bytes from the chain, and reports a time in the future.
    net.tap.intercept = async ({ method }, forward) => {
      if (isSend(method)) return { result: `0x${'1'.repeat(64)}` }
      if (method !== 'eth_call') return undefined
      const { result } = (await (await forward()).json()) as { result: string }
      return { result: late(result) }
    }
    const transfer = signTransfer(own.network, { validBefore: soon() })
    const paying = fixture.pay(transfer)
    await until(async () => (await fixture.settlement.find(transfer))?.state === 'broadcast')
    time.aheadMs = 100_000
    const looks = own.asked('eth_call')
    await until(() => own.asked('eth_call') > looks + 2)
    expect((await fixture.settlement.find(transfer))?.state).toBe('broadcast')
    time.aheadMs = 0
    net.tap.intercept = undefined
    expect((await paying).kind).toBe('confirmed')
  })
})
