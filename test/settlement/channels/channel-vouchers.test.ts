import { describe, expect, spyOn, test } from 'bun:test'
import { account } from '../../../src/demo/accounts'
import { answerMaxBytes, createAnswerStore, ownerOf } from '../../../src/paywall/answer/store'
import type * as Voucher from '../../../src/protocol/Channel'
import type { Transfer } from '../../../src/protocol/Transfer'
import { type OwnChannels, ownChannels } from '../../harness/own-channels'
import { until } from '../../harness/settlement'
import { isPostgres } from '../../harness/test-ledger'

const price = 10_000n

/** Nothing is claimed by time or amount. */
const patient = { claimEveryMs: 3_600_000, claimAboveAtomic: 1_000_000_000n }

describe.concurrent('requests whose answers may fail', () => {
  const creditOf = () => ({ payerAtomic: 200_000n, dayAtomic: 5_000_000n, holdsNew: true })
  const dear = 500_000n
  /** Channels of one signer, of each of which one price is charged. */
  async function openMany(own: OwnChannels, count: number, payer: number) {
    const configs: Voucher.Config[] = []
    for (let n = 0; n < count; n++) {
      const config = own.configOf({ payerAuthorizer: account(1).address }, payer)
      const deposit = own.signDeposit(config, 1_000_000n)
      const paid = await own.pay(own.voucher(config, price, price, { kind: 'deposit', deposit }))
      expect(paid.kind).toBe('authorized')
      configs.push(config)
    }
    return configs
  }
  const authorize = (
    own: OwnChannels,
    config: Voucher.Config,
    amountAtomic: bigint,
    base = price,
  ) => own.authorize(own.voucher(config, base + amountAtomic, amountAtomic))

  for (const payer of [1, 2])
    test(`attack: those that fail at once cost one price above the credit of their signer (payer ${payer})`, async () => {
      await using own = await ownChannels({ settlement: { creditOf } })
      const configs = await openMany(own, 6, payer)
      const { charge } = own.fixture.settlement.authorizations
      // What is charged is no risk: each request of a price that was charged for each is taken.
      const cheap = await Promise.all(configs.map((config) => authorize(own, config, price)))
      for (const each of cheap) {
        if (each.kind !== 'authorized') throw new Error(JSON.stringify(each.kind))
        await charge(each.authorization, { amountAtomic: price, units: {} })
      }
      const all = await Promise.all(configs.map((each) => authorize(own, each, dear, 2n * price)))
      const [taken, ...others] = all.filter((each) => each.kind === 'authorized')
      expect(others).toEqual([])
      if (taken === undefined) throw new Error('none was taken')
      const waits = { kind: 'unavailable', retryAfterSeconds: 1 }
      expect(all.filter((each) => each !== taken)).toMatchObject(Array(5).fill(waits))
      await charge(taken.authorization, { amountAtomic: 0n, units: {} }, { isLost: true })
      const next = await authorize(own, configs[1] as Voucher.Config, price, 2n * price)
      expect(next).toMatchObject({ kind: 'refused', reason: 'upto_credit_exceeded' })
    })

  test('attack: the signer of a channel of another payer borrows nothing on what that one has paid', async () => {
    await using own = await ownChannels({ settlement: { creditOf } })
    const victim = await own.opened(2_000_000n, 1_000_000n, 2)
    const [config] = await openMany(own, 1, 2)
    if (config === undefined) throw new Error('no channel')
    const borrow = async (of: Voucher.Config, max: bigint) => {
      const paid = await own.pay(own.voucher(of, max, price))
      const payment = 'settled' in paid ? paid.settled?.payment : undefined
      if (payment === undefined) throw new Error('nothing was charged')
      return own.fixture.settlement.authorizations.lend(payment, dear)
    }
    expect(await borrow(config, 2n * price)).toBe(false)
    expect(await borrow(victim, 1_000_000n + price)).toBe(true)
  })

  test('attack: what a signer has paid by a channel of another payer gives credit to one of them only', async () => {
    await using own = await ownChannels({ settlement: { creditOf } })
    const config = own.configOf({ payerAuthorizer: account(1).address }, 2)
    const deposit = own.signDeposit(config, 2_000_000n)
    const first = own.voucher(config, 1_000_000n, 1_000_000n, { kind: 'deposit', deposit })
    const both = [await own.pay(first)]
    const ofPayer = await own.opened(2_000_000n, price, 2)
    both.push(await own.pay(own.voucher(ofPayer, 2n * price, price)))
    const credits: boolean[] = []
    for (const paid of both) {
      const payment = 'settled' in paid ? paid.settled?.payment : undefined
      if (payment === undefined) throw new Error('nothing was charged')
      credits.push(await own.fixture.settlement.authorizations.lend(payment, dear))
    }
    expect(credits).toEqual([true, false])
  })

  test('a request that is refused, or ends without a charge, leaves no risk', async () => {
    await using own = await ownChannels({ settlement: { creditOf } })
    const [config] = await openMany(own, 1, 1)
    if (config === undefined) throw new Error('no channel')
    const { charge } = own.fixture.settlement.authorizations
    for (let n = 0; n < 2; n++)
      expect(await authorize(own, config, dear, 2n * price)).toMatchObject({ kind: 'refused' })
    for (let n = 0; n < 2; n++) {
      const taken = await authorize(own, config, dear + BigInt(n))
      if (taken.kind !== 'authorized') throw new Error(taken.kind)
      await charge(taken.authorization, { amountAtomic: 0n, units: {} })
    }
  })
})

describe.concurrent('a charge that is not written', () => {
  test('error: the storage fails: the charge is written once it can be', async () => {
    await using own = await ownChannels()
    const config = await own.opened()
    const full = Object.assign(new Error('database or disk is full'), { code: 'SQLITE_FULL' })
    const charge = spyOn(own.fixture.ledger.channels, 'charge').mockRejectedValueOnce(full)
    await own.pay(own.voucher(config, 2n * price, price))
    expect(charge).toHaveBeenCalledTimes(2)
    expect(await own.row(config)).toMatchObject({ chargedAtomic: 2n * price })
  })

  test('error: any other fault releases the voucher, and the same one may come again', async () => {
    await using own = await ownChannels()
    const config = await own.opened()
    spyOn(own.fixture.ledger.channels, 'charge').mockRejectedValueOnce(new Error('a fault'))
    const voucher = own.voucher(config, 2n * price, price)
    const failed = await own.pay(voucher).catch((error: unknown) => error)
    expect(failed).toMatchObject({ message: 'a fault' })
    await own.pay(voucher)
    expect(await own.row(config)).toMatchObject({ chargedAtomic: 2n * price })
  })
})

test('attack: answers of a channel of another payer leave that one its share of the store', async () => {
  await using own = await ownChannels()
  const config = own.configOf({ payerAuthorizer: account(1).address }, 2)
  const deposit = own.signDeposit(config, 1_000_000n)
  const { ledger } = own.fixture
  const store = () => createAnswerStore(ledger.answers, 16 * answerMaxBytes)
  const answers = await store()
  const answer = { status: 200, headers: new Headers(), body: new Uint8Array(answerMaxBytes) }
  let transfer: Transfer | undefined
  for (const [base, changes] of [
    [0n, { kind: 'deposit', deposit } as const],
    [price, {}],
  ] as const) {
    const paid = await own.pay(own.voucher(config, base + price, price, changes))
    const payment = 'settled' in paid ? paid.settled?.payment : undefined
    if (payment === undefined) throw new Error('nothing was charged')
    await answers.store(payment, answer, 0)
    transfer = payment.transfer
  }
  if (transfer === undefined) throw new Error('nothing was charged')
  for (const each of [answers, await store()]) {
    expect(await each.reserve(account(2).address, 0)).toBeDefined()
    expect(await each.reserve(ownerOf(transfer), 0)).toBeUndefined()
  }
})

test('error: a channel that a crash of the database has undone is read from the chain again', async () => {
  await using own = await ownChannels({ terms: { claimEveryMs: 100 } })
  const config = await own.opened()
  await until(async () => (await own.row(config))?.claimedAtomic === price)
  own.loseChannels()
  const voucher = () => own.pay(own.voucher(config, 2n * price, price))
  expect(await voucher()).toMatchObject({ kind: 'unavailable' })
  expect(await voucher()).toMatchObject({ kind: 'authorized' })
})

test('error: a deposit that a crash of the database has undone is read from the chain again', async () => {
  await using own = await ownChannels({ terms: patient })
  const config = await own.opened()
  own.fixture.sql.run(`UPDATE channels SET balance_atomic = '${price}', synced_at = 1`)
  const voucher = () => own.pay(own.voucher(config, 2n * price, price))
  const reason = 'invalid_batch_settlement_evm_cumulative_amount_mismatch'
  // Its client corrects itself by that, and does not deposit again.
  const channel = { balanceAtomic: 5_000_000n }
  expect(await voucher()).toMatchObject({ kind: 'refused', reason, channel })
  expect(await voucher()).toMatchObject({ kind: 'authorized' })
})

describe.concurrent('a voucher that allows more than its charge', () => {
  /** A channel whose first voucher of 500,000 above the first price was charged 100. */
  const metered = async (own: OwnChannels) => {
    const config = await own.opened()
    const max = price + 500_000n
    expect(await own.pay(own.voucher(config, max, 500_000n), undefined, 100n)).toMatchObject({
      kind: 'authorized',
    })
    return { config, max }
  }
  const baseOf = async (own: OwnChannels, config: Voucher.Config) =>
    (await own.row(config))?.chargedAtomic ?? 0n
  const spent = { kind: 'refused', detail: expect.stringContaining('has paid for a request') }

  test('attack: one that a claim has published pays for nothing more, whatever comes after', async () => {
    await using own = await ownChannels({ terms: patient })
    const { config, max } = await metered(own)
    expect(await own.fixture.settlement.channels.claimAll(own.network.id)).toBe(1)
    await until(async () => (await own.row(config))?.claimedAtomic === price + 100n)
    const replay = async () => own.voucher(config, max, max - (await baseOf(own, config)))
    for (const priceAtomic of [600_000n, 1_000n, 500_000n]) {
      expect(await own.pay(await replay())).toMatchObject(spent)
      const at = await baseOf(own, config)
      const other = own.voucher(config, at + priceAtomic, priceAtomic)
      expect(await own.pay(other, undefined, 100n)).toMatchObject({ kind: 'authorized' })
    }
    const before = await own.row(config)
    expect(before).toMatchObject({ chargedAtomic: price + 400n, signed: { maxAtomic: max } })
    expect(await own.pay(await replay())).toMatchObject(spent)
    const deposit = own.signDeposit(config, 500_000n)
    const { voucher, ...rest } = await replay()
    const again = { ...rest, voucher: { ...voucher, kind: 'deposit', deposit } } as const
    expect(await own.pay(again)).toMatchObject(spent)
    // It may have been read from the chain again.
    expect(await own.row(config)).toMatchObject({ ...before, syncedAt: expect.any(Number) })
  })

  test('attack: one that a node got before a claim was sent pays for nothing more', async () => {
    await using own = await ownChannels({ terms: patient })
    const { config, max } = await metered(own)
    own.net.tap.intercept = ({ method }) =>
      method === 'eth_estimateGas' ? { error: { code: -32_000, message: 'busy' } } : undefined
    expect(await own.fixture.settlement.channels.claimAll(own.network.id)).toBe(1)
    await until(() => own.asked('eth_estimateGas') > 0)
    expect(await own.pay(own.voucher(config, max, max - (price + 100n)))).toMatchObject(spent)
  })

  test('one that only its buyer has may be the voucher of the next request, too', async () => {
    await using own = await ownChannels({ terms: patient })
    const config = await own.opened()
    const max = 3n * price
    expect(await own.pay(own.voucher(config, max, 2n * price), undefined, price)).toMatchObject({
      kind: 'authorized',
    })
    const between = own.voucher(config, max - 1n, price - 1n)
    expect(await own.pay(between, undefined, 1n)).toMatchObject({ kind: 'authorized' })
    const same = own.voucher(config, max, price - 1n)
    const paid = await own.pay(same)
    // What several gateways have, one of them may claim.
    expect(paid).toMatchObject(isPostgres ? spent : { kind: 'authorized' })
    if (isPostgres) return
    expect(await own.row(config)).toMatchObject({ chargedAtomic: max, signed: { maxAtomic: max } })
    expect(await own.pay(same)).toMatchObject({ kind: 'refused' })
  })
})
