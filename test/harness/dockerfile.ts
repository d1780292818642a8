/** One instruction of a Dockerfile, with its continued lines joined. */
export type Instruction = { name: string; value: string }

/** A stage: what follows one FROM. */
export type Stage = { image: string; name: string | undefined; steps: readonly Instruction[] }

/** Reads a Dockerfile without here-documents. Throws for a line that is no instruction. */
export function parseDockerfile(text: string): Stage[] {
  const lines = text.split('\n').filter((line) => !/^\s*(#|$)/.test(line))
  const joined = lines.join('\n').replace(/\\\n\s*/g, '')
  const stages: (Stage & { steps: Instruction[] })[] = []
  for (const line of joined.split('\n')) {
    const [, name = '', value = ''] = /^([A-Z]+) (.+)$/.exec(line) ?? []
    if (name === '') throw new Error(`this is no instruction: ${line}`)
    const [image = '', as, alias] = value.split(' ')
    if (name === 'FROM')
      stages.push({ image, name: as?.toUpperCase() === 'AS' ? alias : undefined, steps: [] })
    else if (stages.length === 0 && name !== 'ARG') throw new Error(`${name} before FROM`)
    else stages.at(-1)?.steps.push({ name, value })
  }
  return stages
}

/** Values of all instructions of a name in a stage. */
export function valuesOf(stage: Stage | undefined, name: string): string[] {
  return (stage?.steps ?? []).filter((step) => step.name === name).map(({ value }) => value)
}
