import { formatEther } from 'viem'
import type { Figures, Gain } from './farm'
import { sponsorDefaults } from './sponsor'

/** Figures of the attacks, for people. */

const usd = (wei: bigint) =>
  `${((Number(wei) / 1e18) * sponsorDefaults.ethPriceUsd).toFixed(6)} USD`

export function describeFlood(figures: Figures): string {
  const { answers, grants, grantsPerDay, spentWei, budgetWei, honest } = figures
  const codes = Object.entries(answers)
    .toSorted((a, b) => b[1] - a[1])
    .map(([code, count]) => `    ${code.padEnd(24)}${count}`)
  return [
    `  ${figures.addresses} addresses, ${figures.requests} requests in ${figures.seconds.toFixed(1)} s`,
    ...codes,
    `  ${grants} of ${grantsPerDay} grants, ${figures.doubled} addresses with two`,
    `  spent ${formatEther(spentWei)} of ${formatEther(budgetWei)} ETH (${usd(spentWei)})`,
    `  honest wallets during it: ${honest.join(', ')}`,
  ].join('\n')
}

export function describeGain({ baseFeeWei, addresses, grantedWei, gainWei }: Gain): string {
  return [
    `  farmer, ${addresses} addresses at ${Number(baseFeeWei) / 1e9} gwei:`,
    `granted ${usd(grantedWei)}, gain ${usd(gainWei)}`,
  ].join(' ')
}
