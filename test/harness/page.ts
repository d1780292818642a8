/** Commands of a page, and what it says that they print. */
export type Block = {
  /** The heading above it. */
  title: string
  terminal: string
  code: string
  /** The lines that follow it on the page. */
  expected: readonly string[]
  /** The commands run until they are stopped. */
  isLasting: boolean
}

const fence = /^```(sh|text)\n([\s\S]*?)^```$/gm

/**
 * The blocks of commands in order. The first line of each names its terminal: `# terminal 2`, or
 * `# terminal 2: leave it running`. Throws for a page in another form.
 */
export function blocksOf(page: string): Block[] {
  const blocks: Block[] = []
  let isOpen = false
  for (const { 1: kind, 2: text = '', index } of page.matchAll(fence)) {
    if (kind === 'text') {
      const block = blocks.at(-1)
      if (!isOpen || block === undefined) throw new Error(`no commands print this:\n${text}`)
      blocks[blocks.length - 1] = { ...block, expected: text.trimEnd().split('\n') }
      isOpen = false
      continue
    }
    if (isOpen) throw new Error(`the page does not show what this prints:\n${blocks.at(-1)?.code}`)
    const named = /^# terminal (\d+)(: leave it running)?\n/.exec(text)
    if (named === null) throw new Error(`no terminal is named for this:\n${text}`)
    const title = [...page.slice(0, index).matchAll(/^## (.+)$/gm)].at(-1)?.[1] ?? ''
    const [, terminal = '', lasting] = named
    blocks.push({ title, terminal, code: text, expected: [], isLasting: lasting !== undefined })
    isOpen = true
  }
  if (isOpen) throw new Error('the page does not show what its last commands print')
  return blocks
}

/**
 * Whether an output has the expected lines in their order. `...` stands for any text, and in a line
 * of its own for any lines; lines between the expected ones are allowed only there.
 */
export function matches(expected: readonly string[], output: string): boolean {
  const lines = output.replaceAll('\r', '').split('\n')
  let at = 0
  // Programs that download print notices first.
  let mayBeLater = true
  for (const line of expected) {
    if (line === '...') {
      mayBeLater = true
      continue
    }
    const pattern = new RegExp(`^${line.split('...').map(RegExp.escape).join('.*')}$`)
    const rest = lines.slice(at)
    const found = mayBeLater ? rest.findIndex((each) => pattern.test(each)) : 0
    if (found === -1 || !pattern.test(rest[found] ?? '')) return false
    at += found + 1
    mayBeLater = false
  }
  return true
}
