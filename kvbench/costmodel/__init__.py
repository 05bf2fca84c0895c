"""What a step of the engine costs on a device that is not there: features of a step, rates of a device, seconds."""
