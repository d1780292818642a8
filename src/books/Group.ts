/** What a line of a report belongs to: only the members of its grouping are set. */
export type Group = {
  day?: string | undefined
  merchant?: string | undefined
  route?: string | undefined
  payer?: string | undefined
  client?: string | undefined
}

const members = {
  merchant: ['merchant'],
  route: ['merchant', 'route'],
  payer: ['payer'],
  network: [],
  client: ['client'],
  day: ['day'],
} as const satisfies Readonly<Record<string, readonly (keyof Group)[]>>

/** The group of what has these members. */
export function of(by: keyof typeof members, has: Group): Group {
  const own = members[by].map((name) => [name, has[name]] as const)
  return Object.fromEntries(own.filter(([, value]) => value !== undefined))
}

/** The name of a group; of all lines it is empty. */
export function nameOf({ day, payer, client, merchant = '', route = '' }: Group): string {
  return day ?? payer ?? client ?? merchant + route
}
