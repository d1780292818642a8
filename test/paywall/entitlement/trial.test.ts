import { expect, test } from 'bun:test'
import { account } from '../../../src/demo/accounts'
import { createTrialCheck } from '../../../src/paywall/entitlement/trial'
import { ownSettlement } from '../../harness/own-settlement'

test('the wallets of one client that are read in a minute are limited, and the rest may pay', async () => {
  await using own = await ownSettlement()
  const { settlement } = own.fixture
  const check = createTrialCheck({ settlement, trialsPerMinute: () => 1, now: () => 0 })
  const ask = async (client: string, balanceAtomic = 1n) => {
    const floor = { network: own.network.id, balanceAtomic, blocks: 0 }
    const asking = { wallet: account(1).address, network: own.network, floor, client }
    return (await check(asking))?.reason
  }
  expect(await ask('192.0.2.1')).toBeUndefined()
  expect(await ask('192.0.2.1')).toBe('trial_busy')
  // One that needs no balance is not read.
  expect(await ask('192.0.2.1', 0n)).toBeUndefined()
  expect(await ask('192.0.2.2', 10n ** 30n)).toBe('trial_balance_too_low')
})
