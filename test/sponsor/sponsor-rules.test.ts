import { describe, expect, test } from 'bun:test'
import { maxUint256, type TransactionSerializableEIP1559 } from 'viem'
import { roomFor } from '../../db/GrantBudget'
import * as Token from '../../src/chain/token'
import * as Transaction from '../../src/chain/transaction'
import { account } from '../../src/demo/accounts'
import * as Crypto from '../../src/protocol/Crypto'
import * as Permit from '../../src/protocol/Permit'
import { createSemaphore } from '../../src/settlement/read/holdings'
import * as Approve from '../../src/sponsor/Approve'
import { createClients, networkOf } from '../../src/sponsor/clients'
import * as Grant from '../../src/sponsor/Grant'
import { outcomeOf } from '../harness/outcome'
import { networkOf as network } from '../harness/settlement'

const payer = account(3)
const { asset, chainId } = network('http://localhost')
const sponsor = {
  minBalanceAtomic: 100_000n,
  minBalanceAgeBlocks: 50,
  grantsPerDay: 200,
  maxGrantWei: 25_000_000_000_000n,
  ethPriceUsd: 4000,
}
const price: Grant.Price = { gas: 46_000n, baseFeeWei: 40_000_000n, tipWei: 0n }
const data = Token.approve(asset.address, Permit.permit2Address, maxUint256).data

const approve: TransactionSerializableEIP1559 = {
  type: 'eip1559',
  chainId,
  nonce: 0,
  to: asset.address,
  data,
  gas: 70_000n,
  maxFeePerGas: 48_000_000n,
  maxPriorityFeePerGas: 0n,
}
const sign = (changes: object = {}) =>
  payer.local().signTransaction({ ...approve, ...changes } as TransactionSerializableEIP1559)
const transfer = { chainId, asset: asset.address, payer: payer.address, amountAtomic: 5_000n }
const codeOf = async (changes: object) => {
  const raw = await sign(changes)
  return Approve.check(Transaction.parse(raw), transfer)?.code
}

describe('the conditions for a grant', () => {
  const facts: Grant.Facts = {
    code: 'eoa',
    assetAtomic: 100_000n,
    assetBeforeAtomic: 100_000n,
    allowanceAtomic: 0n,
    balanceWei: 0n,
    nonce: 0,
  }
  const codeOf = (changes: Partial<Grant.Facts>) =>
    Grant.refusalOf({ ...facts, ...changes }, asset, sponsor)?.code

  test('an EOA that has had the least balance for long enough gets a grant', () => {
    expect(codeOf({})).toBeUndefined()
  })

  test('error: code, too little and too young are refused', () => {
    expect(codeOf({ code: 'contract' })).toBe('not-an-eoa')
    expect(codeOf({ assetAtomic: 99_999n })).toBe('asset-balance-too-low')
    expect(codeOf({ assetBeforeAtomic: 99_999n })).toBe('balance-too-young')
    expect(codeOf({ assetBeforeAtomic: undefined })).toBe('balance-too-young')
  })

  test('the grant is the cost of one approve at 1.2 times the base fee, less the balance of the address', () => {
    const cap = Grant.capWei(sponsor, 6)
    const whole = 46_000n * 48_000_000n
    expect(Grant.amountOf(0n, price, cap)).toEqual({ kind: 'amount', wei: whole })
    expect(Grant.amountOf(1_000n, price, cap)).toEqual({ kind: 'amount', wei: whole - 1_000n })
    const tipped = { ...price, tipWei: 10_000_000n }
    expect(Grant.amountOf(0n, tipped, cap)).toEqual({ kind: 'amount', wei: 46_000n * 58_000_000n })
    expect(Grant.amountOf(whole, price, cap)).toEqual({ kind: 'has-gas' })
    expect(Grant.amountOf(whole - 1n, price, cap)).toEqual({ kind: 'amount', wei: 1n })
  })

  test('attack: the gas of a grant has room for L1 data, and none for code', () => {
    expect(Grant.transferGasOf(21_000n)).toBe(21_000n)
    expect(Grant.transferGasOf(20_999n)).toBe(21_000n)
    expect(Grant.transferGasOf(22_500n)).toBe(24_000n)
    expect(Grant.transferGasOf(60_500n)).toBe(100_000n)
    expect(Grant.transferGasOf(60_501n)).toBeUndefined()
  })

  test('the approve of the answer costs no more than the address has', () => {
    const call = { to: asset.address, data }
    const of = (balanceWei: bigint, at = price) =>
      Grant.approveOf(call, chainId, at, { balanceWei, nonce: 3 })
    const whole = { ...call, gas: '46000', maxPriorityFeePerGas: '0', nonce: 3, chainId }
    expect(of(10n ** 18n)).toEqual({ ...whole, maxFeePerGas: '48000000' })
    expect(of(46_000n * 46_000_000n)).toEqual({ ...whole, maxFeePerGas: '46000000' })
    expect(of(46_000n * 45_000_000n)?.maxFeePerGas).toBe('45000000')
    expect(of(46_000n * 45_000_000n - 1n)).toBeUndefined()
    // A tip above the fee is not a valid transaction.
    const tipped = { ...price, tipWei: 10n ** 9n }
    expect(of(46_000n * 50_000_000n, tipped)?.maxPriorityFeePerGas).toBe('50000000')
  })

  test('a grant is increased when fees rose and none of it is spent, up to the cap', () => {
    const cap = Grant.capWei(sponsor, 6)
    const amountWei = 46_000n * 48_000_000n
    const risen = { ...price, baseFeeWei: 100_000_000n }
    const topUp = (balanceWei: bigint, at: Grant.Price, of = cap) =>
      Grant.topUpOf(balanceWei, at, { amountWei, cap: of })
    expect(topUp(amountWei, price)).toBeUndefined()
    expect(topUp(amountWei, risen)).toBe(46_000n * 120_000_000n - amountWei)
    // A part was spent on something else.
    expect(topUp(amountWei - 1n, risen)).toBeUndefined()
    expect(topUp(amountWei, risen, amountWei)).toBeUndefined()
    expect(topUp(amountWei, risen, 46_000n * 112_500_000n)).toBe(46_000n * 64_500_000n)
    expect(topUp(amountWei, risen, 46_000n * 112_500_000n - 1n)).toBeUndefined()
  })

  test('a grant is never worth more than the required balance', () => {
    expect(Grant.capWei(sponsor, 6)).toBe(25_000_000_000_000n)
    expect(Grant.capWei({ ...sponsor, maxGrantWei: 10n ** 18n }, 6)).toBe(25_000_000_000_000n)
    expect(Grant.capWei({ ...sponsor, ethPriceUsd: 8000.5 }, 6)).toBe(12_499_218_798_825n)
    expect(Grant.capWei({ ...sponsor, maxGrantWei: 7n }, 6)).toBe(7n)
  })

  test('error: an approve that the cap does not pay for gets no grant', () => {
    const dear = { ...price, baseFeeWei: 470_000_000n }
    // It must also be included when the base fee rises by the most that one block allows.
    const least = 46_000n * 528_750_000n
    expect(Grant.leastWei(dear)).toBe(least)
    expect(Grant.amountOf(0n, dear, least - 1n)).toEqual({ kind: 'too-expensive' })
    expect(Grant.amountOf(0n, dear, least)).toEqual({ kind: 'amount', wei: least })
  })

  test("after half of the day's grants or wei only signed requests get a grant, after all none does", () => {
    const budget = { grants: 4, wei: 1_000n }
    expect(roomFor({ grants: 0, wei: 0n }, budget, 100n)).toBe('open')
    expect(roomFor({ grants: 1, wei: 499n }, budget, 100n)).toBe('open')
    expect(roomFor({ grants: 2, wei: 0n }, budget, 100n)).toBe('signed')
    expect(roomFor({ grants: 1, wei: 500n }, budget, 100n)).toBe('signed')
    expect(roomFor({ grants: 1, wei: 901n }, budget, 100n)).toBe('spent')
    expect(roomFor({ grants: 4, wei: 0n }, budget, 0n)).toBe('spent')
    expect(roomFor({ grants: 0, wei: 0n }, { grants: 0, wei: 0n }, 0n)).toBe('spent')
  })

  test('a signature of a common wallet over the message is accepted, with the address in either spelling', async () => {
    const { id } = network('http://localhost')
    for (const address of [payer.address, payer.address.toLowerCase()]) {
      const message = `turnpike gas sponsor ${id} ${address}`
      const signature = await payer.local().signMessage({ message })
      expect(Grant.isSigned(id, payer.address, signature)).toBe(true)
      expect(Grant.isSigned('eip155:8453', payer.address, signature)).toBe(false)
      expect(Grant.isSigned(id, account(4).address, signature)).toBe(false)
    }
    for (const nonsense of ['', '0x', `0x${'00'.repeat(65)}`, 'x'.repeat(132)])
      expect(Grant.isSigned(id, payer.address, nonsense)).toBe(false)
  })
})

describe('a signed approve', () => {
  test('an approve that the reference client signs is accepted', async () => {
    const parsed = Transaction.parse(await sign())
    expect(Approve.check(parsed, transfer)).toBeUndefined()
    if (parsed === undefined) throw new Error('not parsed')
    expect(parsed).toMatchObject({ signer: payer.address, nonce: 0, gasLimit: 70_000n })
    expect(Approve.checkEnough(parsed, price)).toBeUndefined()
    expect(Approve.checkModest(parsed, price)).toBeUndefined()
    expect(Approve.worstCostWei(parsed)).toBe(70_000n * 48_000_000n)
  })

  test('our own transactions are parsed to their fields', () => {
    for (const valueWei of [0n, 1n, 127n, 128n, 10n ** 18n]) {
      const request: Transaction.TransactionRequest = {
        chainId,
        nonce: Number(valueWei % 300n),
        maxTipWei: 0n,
        maxFeeWei: valueWei,
        gasLimit: 100_000n,
        to: payer.address,
        valueWei,
        data: `0x${'ab'.repeat(Number(valueWei % 70n))}`,
      }
      const { raw, hash } = Transaction.sign(request, Crypto.bytes(account(0).privateKey))
      const parsed = Transaction.parse(raw)
      expect(parsed).toEqual({ ...request, hash, signer: account(0).address })
    }
  })

  const other = account(4).address
  const short = Token.approve(asset.address, Permit.permit2Address, 4_999n).data
  const faults: [name: string, changes: object, code: string][] = [
    ['another chain', { chainId: 8453 }, 'wrong_chain'],
    ['another target', { to: other }, 'wrong_target'],
    ['no target', { to: undefined }, 'parse_failed'],
    ['another call', { data: `0xa9059cbb${data.slice(10)}` }, 'wrong_selector'],
    ['no call', { data: undefined }, 'wrong_selector'],
    ['calldata that is longer', { data: `${data}00` }, 'invalid_calldata'],
    ['calldata that is shorter', { data: data.slice(0, -2) }, 'invalid_calldata'],
    ['a dirty spender', { data: `${data.slice(0, 10)}01${data.slice(12)}` }, 'invalid_calldata'],
    [
      'another spender',
      { data: Token.approve(asset.address, other, maxUint256).data },
      'wrong_spender',
    ],
    ['less than the payment', { data: short }, 'amount_too_low'],
    [
      'an approve of nothing',
      { data: Token.approve(asset.address, Permit.permit2Address, 0n).data },
      'amount_too_low',
    ],
    ['a value', { value: 1n }, 'value_not_zero'],
    ['an access list', { accessList: [{ address: other, storageKeys: [] }] }, 'parse_failed'],
    [
      'a legacy transaction',
      { type: 'legacy', gasPrice: 1n, maxFeePerGas: undefined, maxPriorityFeePerGas: undefined },
      'parse_failed',
    ],
    [
      'type 1',
      { type: 'eip2930', gasPrice: 1n, maxFeePerGas: undefined, maxPriorityFeePerGas: undefined },
      'parse_failed',
    ],
    ['a delegation', { type: 'eip7702', authorizationList: [] }, 'parse_failed'],
  ]
  for (const [name, changes, code] of faults) {
    test(`error: ${name} is refused`, async () => {
      expect(await codeOf(changes)).toBe(`erc20_approval_tx_${code}`)
    })
  }

  test('error: an approve of another signer is refused', async () => {
    const raw = await account(4).local().signTransaction(approve)
    expect(Approve.check(Transaction.parse(raw), transfer)?.code).toBe(
      'erc20_approval_tx_signer_mismatch',
    )
  })

  test('error: other spellings of the same transaction are refused', async () => {
    const raw = await sign()
    const code = (text: string) => Approve.check(Transaction.parse(text), transfer)?.code
    for (const text of ['', '0x', '0x02', `${raw}00`, raw.slice(0, -2), `0x01${raw.slice(4)}`])
      expect(code(text)).toBe('erc20_approval_tx_parse_failed')
    // The high s of the same signature: mathematically valid, and refused by nodes.
    const s = BigInt(`0x${raw.slice(-64)}`)
    const order = 0xfffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141n
    const high = (order - s).toString(16).padStart(64, '0')
    expect(code(raw.slice(0, -64) + high)).toBe('erc20_approval_tx_invalid_signature')
    // A nonce of zero as a byte instead of as empty.
    const spelt = raw.replace('82123780', '82123700')
    expect(spelt).not.toBe(raw)
    expect(code(spelt)).toBe('erc20_approval_tx_parse_failed')
  })

  test('error: gas and fees beyond those of an approve are refused', async () => {
    const faultOf = async (changes: object) => {
      const parsed = Transaction.parse(await sign(changes))
      if (parsed === undefined) throw new Error('not parsed')
      return (Approve.checkEnough(parsed, price) ?? Approve.checkModest(parsed, price))?.code
    }
    expect(await faultOf({ gas: 70_001n })).toBe('erc20_approval_tx_gas_too_high')
    expect(await faultOf({ gas: 45_999n })).toBe('erc20_approval_tx_gas_too_low')
    expect(await faultOf({ gas: 46_000n })).toBeUndefined()
    expect(await faultOf({ maxFeePerGas: 52_000_001n })).toBe('erc20_approval_tx_fee_too_high')
    expect(await faultOf({ maxFeePerGas: 39_999_999n })).toBe('erc20_approval_tx_fee_too_low')
    expect(await faultOf({ maxFeePerGas: 52_000_000n })).toBeUndefined()
  })
})

test('turns are taken in order, and the number of waiting calls is limited', async () => {
  const semaphore = createSemaphore(2, 3)
  const gates = Array.from({ length: 6 }, () => Promise.withResolvers<void>())
  const started: number[] = []
  const works = gates.map((gate, index) =>
    semaphore.run(async () => {
      started.push(index)
      await gate.promise
      if (index === 1) throw new Error('failed')
      return index
    }),
  )
  expect(works.map((work) => work === undefined)).toEqual([...Array(5).fill(false), true])
  expect(started).toEqual([0, 1])
  gates[1]?.resolve()
  expect(await outcomeOf(works[1])).toThrow('failed')
  expect(started).toEqual([0, 1, 2])
  for (const gate of gates) gate.resolve()
  expect(await Promise.all([works[0], works[2], works[3], works[4]])).toEqual([0, 2, 3, 4])
  expect(await semaphore.run(async () => 'free again')).toBe('free again')
})

describe('clients', () => {
  const wallet = (index: number) => `0x${index}` as const

  test('grants of one client and one network are limited, and available again tomorrow', () => {
    const clients = createClients()
    let asked = 0
    const take = (client: string, day = 1) => {
      const address = wallet(++asked)
      const isTaken = clients.take(client, day, address)
      clients.settle([address])
      return isTaken
    }
    expect(Array.from({ length: 6 }, () => take('10.0.0.1'))).toEqual([
      ...Array<boolean>(5).fill(true),
      false,
    ])
    const others = Array.from({ length: 20 }, (_, index) => take(`10.0.0.${index + 2}`))
    expect(others.filter((isIn) => isIn)).toHaveLength(15)
    expect(take('10.0.1.1')).toBe(true)
    expect(take('10.0.0.1', 2)).toBe(true)
    clients.releaseReservation('10.0.0.1', 2, wallet(asked))
    expect(Array.from({ length: 5 }, () => take('10.0.0.1', 2))).not.toContain(false)
  })

  test('a client may have one unused grant, its network four', () => {
    const clients = createClients()
    expect(clients.take('10.0.0.1', 1, wallet(1))).toBe(true)
    expect(clients.take('10.0.0.1', 1, wallet(2))).toBe(false)
    expect(clients.unused('10.0.0.1', 1)).toEqual([wallet(1)])
    // An increase of its own grant does not count.
    expect(clients.take('10.0.0.1', 1, wallet(1))).toBe(true)
    clients.settle([wallet(1)])
    expect(clients.unused('10.0.0.1', 1)).toEqual([])
    const neighbours = [2, 3, 4, 5, 6].map((last) =>
      clients.take(`10.0.0.${last}`, 1, wallet(last)),
    )
    expect(neighbours).toEqual([true, true, true, true, false])
    expect(clients.take('10.0.1.1', 1, wallet(7))).toBe(true)
    // A grant that was not sent does not count.
    clients.releaseReservation('10.0.0.2', 1, wallet(2))
    expect(clients.take('10.0.0.6', 1, wallet(6))).toBe(true)
    expect(clients.take('10.0.0.6', 2, wallet(8))).toBe(true)
  })

  test('networks of clients are /24 and /48', () => {
    expect(networkOf('192.0.2.77')).toBe('192.0.2.0/24')
    expect(networkOf('2001:db8:1:2::/64')).toBe('2001:db8:1::/48')
    expect(networkOf('2001:db8:1:3::/64')).toBe('2001:db8:1::/48')
    expect(networkOf('2001:db8:2:2::/64')).not.toBe('2001:db8:1::/48')
  })
})
